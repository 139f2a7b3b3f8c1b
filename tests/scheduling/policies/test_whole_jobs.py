"""Whole jobs: who is chosen to run."""

from __future__ import annotations

from sharedkernel.scheduling.policies.levels import Levels
from sharedkernel.scheduling.policies.whole_jobs import FifoJobs, Job, JobPolicy, LasJobs, choose


def job(arrival: int, devices: int = 1, *, ran: float = 0.0, left: float = 100.0, is_running: bool = False) -> Job:
    made = Job(devices=devices, arrival=arrival, remaining=left, is_running=is_running)
    made.executed = made.aged = ran
    return made


def arrivals(policy: JobPolicy, jobs: list[Job], devices: int) -> list[int]:
    return [chosen.arrival for chosen in choose(policy, jobs, devices)]


def test_strict_fifo_waits_for_the_first() -> None:
    """While the oldest does not fit, nobody behind it starts; what runs goes on."""
    jobs = [job(0, 2, is_running=True), job(1, 4), job(2, 1)]
    assert arrivals(FifoJobs(), jobs, 4) == [0]
    assert arrivals(FifoJobs(backfill=True), jobs, 4) == [0, 2]


def test_las_puts_whoever_is_demoted_at_the_end_of_the_queue() -> None:
    """A job that crosses a threshold gives way to those who wait in the lower queue already."""
    las = LasJobs(Levels(thresholds=(100.0,)))
    first, second = job(0), job(1)
    assert arrivals(las, [first, second], 1) == [0]
    first.aged = 100.0
    assert arrivals(las, [first, second], 1) == [1]
    second.aged = 100.0
    assert arrivals(las, [first, second], 1) == [0]
