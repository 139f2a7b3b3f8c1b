"""Pictures of a simulation: who ran when, all policies on one axis of time, and how completion times are distributed.

matplotlib draws them. It is asked for only here, and only when a picture is wanted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.simulator.report import SimulationResult, time_unit

#: kinds of picture by the ending of the file's name
PICTURES = (".png", ".svg", ".pdf")
#: most jobs of which each gets a row of its own
_MOST_ROWS = 120


def check_plot(path: Path) -> None:
    """Make sure, before anything is simulated, that a picture can be drawn to *path*.

    Raises
    ------
    ConfigError
        When matplotlib is missing, or the name's ending is of no known kind of picture.
    """
    if path.suffix not in PICTURES:
        raise ConfigError(f"{path} is no name for a picture; let it end in {', '.join(PICTURES)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"a picture needs matplotlib; install it with {install_hint('plot')}.")


def plot(outcomes: Sequence[SimulationResult], path: Path) -> None:
    """Draw results to a file.

    Parameters
    ----------
    outcomes
        One for each policy.
    path
        Of the picture; its ending decides the format.

    Raises
    ------
    ConfigError
        When the file cannot be written.
    """
    try:
        draw(outcomes).savefig(path)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {path}: {error.strerror}.") from None


def draw(outcomes: Sequence[SimulationResult]) -> Any:
    """Return a figure of matplotlib with results one below the other, on one axis of time, and then how long jobs took.

    Parameters
    ----------
    outcomes
        One for each policy.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 + 2.2 * len(outcomes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(outcomes) + 1, 1, squeeze=False)[:, 0]
    began, ended = min(outcome.began for outcome in outcomes), max(outcome.ended for outcome in outcomes)
    unit, length = time_unit(ended - began)
    uses = []
    for panel, outcome in zip(panels, outcomes, strict=False):
        if outcome.jobs <= _MOST_ROWS:
            _draw_rows(panel, outcome, length)
        else:
            _draw_use(panel, outcome, length)
            uses.append(panel)
        panel.set_title(outcome.policy, loc="left")
        if ended > began:
            panel.set_xlim(began / length, ended / length)
    highest = max((panel.get_ylim()[1] for panel in uses), default=None)
    for panel in uses:
        panel.set_ylim(0, highest)
    panels[-2].set_xlabel(f"time, {unit}")
    _draw_distribution(panels[-1], outcomes)
    return figure


def _draw_rows(panel: Any, outcome: SimulationResult, length: float) -> None:
    rows: dict[int, list[tuple[float, float]]] = {}
    for span in outcome.spans:
        rows.setdefault(span.job, []).append((span.started / length, (span.ended - span.started) / length))
    for job, stretches in rows.items():
        panel.broken_barh(stretches, (job - 0.4, 0.8))
    panel.set_ylabel("job")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.invert_yaxis()


def _draw_use(panel: Any, outcome: SimulationResult, length: float) -> None:
    changes = [(span.started, span.devices) for span in outcome.spans]
    changes += [(span.ended, -span.devices) for span in outcome.spans]
    times, levels, level = [outcome.began], [0.0], 0.0
    for time, change in sorted(changes):
        level += change
        times.append(time)
        levels.append(level)
    panel.step([time / length for time in times], levels, where="post", linewidth=0.8)
    panel.set_ylabel("devices used")


def _draw_distribution(panel: Any, outcomes: Sequence[SimulationResult]) -> None:
    unit, length = time_unit(max((max(outcome.completion_times, default=0.0) for outcome in outcomes), default=0.0))
    for outcome in outcomes:
        times = sorted(time / length for time in outcome.completion_times)
        shares = [number / len(times) for number in range(len(times) + 1)] if times else []
        times = [*times[:1], *times]  # it begins at no job
        panel.step(times, shares, where="post", label=outcome.policy)
    panel.set_xscale("log")
    panel.set_xlabel(f"completion time, {unit}")
    panel.set_ylabel("share of jobs")
    panel.legend()
