"""Pictures of a simulation: who ran when, and how completion times are distributed.

matplotlib draws them. It is asked for only here, and only when a picture is wanted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.simulator.report import SimulationResult

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
    """Draw results side by side.

    Parameters
    ----------
    outcomes
        One for each policy.
    path
        Of the picture; its ending decides the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 + 2.2 * len(outcomes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(outcomes) + 1, 1, squeeze=False)[:, 0]
    for panel, outcome in zip(panels, outcomes, strict=False):
        draw = _draw_rows if outcome.jobs <= _MOST_ROWS else _draw_use
        draw(panel, outcome)
        panel.set_title(outcome.policy, loc="left")
        panel.set_xlabel("time, s")
        panel.set_xlim(outcome.began, outcome.ended)
    _draw_distribution(panels[-1], outcomes)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {path}: {error.strerror}.") from None


def _draw_rows(panel: Any, outcome: SimulationResult) -> None:
    rows: dict[int, list[tuple[float, float]]] = {}
    for span in outcome.spans:
        rows.setdefault(span.job, []).append((span.started, span.ended - span.started))
    for job, stretches in rows.items():
        panel.broken_barh(stretches, (job - 0.4, 0.8))
    panel.set_ylabel("job")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.invert_yaxis()


def _draw_use(panel: Any, outcome: SimulationResult) -> None:
    changes = [(span.started, span.devices) for span in outcome.spans]
    changes += [(span.ended, -span.devices) for span in outcome.spans]
    times, levels, level = [outcome.began], [0.0], 0.0
    for time, change in sorted(changes):
        level += change
        times.append(time)
        levels.append(level)
    panel.step(times, levels, where="post", linewidth=0.8)
    panel.set_ylabel("devices used")


def _draw_distribution(panel: Any, outcomes: Sequence[SimulationResult]) -> None:
    for outcome in outcomes:
        times = sorted(outcome.completion_times)
        shares = [number / len(times) for number in range(len(times) + 1)] if times else []
        times = [*times[:1], *times]  # it begins at no job
        panel.step(times, shares, where="post", label=outcome.policy)
    panel.set_xscale("log")
    panel.set_xlabel("completion time, s")
    panel.set_ylabel("share of jobs")
    panel.legend()
