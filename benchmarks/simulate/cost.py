"""What the scheduler's decisions cost: iterations of many sessions on one device, and how that grows."""

from __future__ import annotations

import sys
import time

from benchmarks.simulate import tables
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.device import SimulatedCell, SimulatedDevice, SimulatedSession


def run(sessions: int, iterations: int, quantum: float) -> tuple[float, int, int]:
    """Return (seconds, events, iterations) of sessions that share *iterations* of 10 ms."""
    each = 0.01 * iterations / sessions
    made = [
        SimulatedSession(
            name=f"session-{number}",
            user=f"user-{number}",
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


def main() -> None:
    """Print the cost by number of sessions; ``--full`` runs a million iterations and 10,000 sessions."""
    is_full = "--full" in sys.argv[1:]
    rows = []
    for sessions in (100, 300, 1000, 3000, 10_000) if is_full else (100, 300, 1000):
        seconds, events, iterations = run(sessions, 100_000, 0.05)
        rows.append([sessions, iterations, events, seconds, 1e6 * seconds / events, 1e6 * seconds / iterations])
    if is_full:
        for name, quantum in (("1,000", 0.05), ("1,000, turns of 1 s", 1.0)):
            seconds, events, iterations = run(1000, 1_000_000, quantum)
            rows.append([name, iterations, events, seconds, 1e6 * seconds / events, 1e6 * seconds / iterations])
    columns = ["sessions", "iterations", "events", "processor, s", "us an event", "us an iteration"]
    tables.table("one device, turns of 50 ms, iterations of 10 ms", columns, rows)


if __name__ == "__main__":
    main()
