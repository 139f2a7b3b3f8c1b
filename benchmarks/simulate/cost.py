"""What the scheduler's decisions cost: iterations of many sessions on one device, and how that grows."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulate import tables
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.device import SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.report import check_plot


def run(sessions: int, iterations: int, quantum: float) -> tuple[float, int, int]:
    """Return (seconds, events, iterations) of sessions that share *iterations* of 10 ms."""
    each = 0.01 * iterations / sessions
    made = [
        SimulatedSession(
            name=f"session-{number}",
            cells=[SimulatedCell(seconds=each, iteration=0.01)],
            persistent=1,
            ephemeral=1,
        )
        for number in range(sessions)
    ]
    config = SchedulerConfig(capacity=1 << 30, preempt_patience=3600.0, quantum=quantum)
    device = SimulatedDevice(config, made)
    began = time.process_time()
    device.run()
    return time.process_time() - began, device.num_events, device.num_iterations


def growth() -> list[tuple[int, float]]:
    """Print and return the processor's time, seconds, by number of sessions that all have 100 iterations."""
    rows, points = [], []
    for sessions in (100, 300, 1000, 3000, 10_000):
        seconds, events, iterations = run(sessions, 100 * sessions, 0.05)
        points.append((sessions, seconds))
        bound = _n_log_n(points, sessions)
        rows.append([sessions, iterations, events, seconds, bound, 1e6 * seconds / events])
    columns = ["sessions", "iterations", "events", "processor, s", "n log n from the first, s", "us an event"]
    tables.table("one device, 100 iterations each", columns, rows)
    return points


def _n_log_n(points: Sequence[tuple[int, float]], sessions: int) -> float:
    """Return what *sessions* would cost, seconds, if cost grew as n log n from the first of *points*."""
    first, seconds = points[0]
    return seconds * sessions * math.log(sessions) / (first * math.log(first))


def plot(points: Sequence[tuple[int, float]], path: Path) -> None:
    """Draw what was measured beside n log n."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    numbers = [sessions for sessions, _ in points]
    panel.loglog(numbers, [seconds for _, seconds in points], "o-", label="measured")
    panel.loglog(numbers, [_n_log_n(points, number) for number in numbers], "--", color="grey", label="n log n")
    panel.set_xlabel("sessions on one device, 100 iterations each")
    panel.set_ylabel("processor, s")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(path)


def main() -> None:
    """Print the cost by number of sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="a million iterations and 10,000 sessions, too")
    parser.add_argument("--plot", type=Path, help="draw how the cost grows with the sessions, to this picture")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    if asked.plot is not None:
        check_plot(asked.plot)
        plot(growth(), asked.plot)
        return
    rows: list[list[object]] = []
    for sessions in (100, 300, 1000, 3000, 10_000) if asked.full else (100, 300, 1000):
        seconds, events, iterations = run(sessions, 100_000, 0.05)
        rows.append([sessions, iterations, events, seconds, 1e6 * seconds / events, 1e6 * seconds / iterations])
    if asked.full:
        for name, quantum in (("1,000", 0.05), ("1,000, turns of 1 s", 1.0)):
            seconds, events, iterations = run(1000, 1_000_000, quantum)
            rows.append([name, iterations, events, seconds, 1e6 * seconds / events, 1e6 * seconds / iterations])
    columns = ["sessions", "iterations", "events", "processor, s", "us an event", "us an iteration"]
    how = "one device, turns of 50 ms, iterations of 10 ms"
    if asked.json:
        tables.print_json("cost", how, (columns, rows))
    else:
        tables.table(how, columns, rows)


if __name__ == "__main__":
    main()
