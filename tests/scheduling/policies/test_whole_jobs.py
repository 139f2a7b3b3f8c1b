"""Whole jobs: who is chosen to run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling.policies.levels import Levels, ServiceDistribution
from sharedkernel.scheduling.policies.whole_jobs import (
    FifoJobs,
    GittinsJobs,
    Job,
    JobId,
    JobPolicy,
    LasJobs,
    SrtfJobs,
    choose,
)


def job(arrival: int, devices: int = 1, *, ran: float = 0.0, left: float = 100.0, is_running: bool = False) -> Job:
    made = Job(id=JobId(str(arrival)), devices=devices, arrival=arrival, remaining=left, is_running=is_running)
    made.executed = made.recent = ran
    return made


def names(policy: JobPolicy, jobs: list[Job], devices: int) -> list[str]:
    return [chosen.id for chosen in choose(policy, jobs, devices)]


def test_strict_fifo_waits_for_the_first() -> None:
    """While the oldest does not fit, nobody behind it starts; what runs goes on."""
    jobs = [job(0, 2, is_running=True), job(1, 4), job(2, 1)]
    assert names(FifoJobs(), jobs, 4) == ["0"]
    assert names(FifoJobs(backfill=True), jobs, 4) == ["0", "2"]


def test_srtf_preempts_for_the_shorter() -> None:
    """The least remaining time runs, whoever runs now."""
    jobs = [job(0, 2, left=50, is_running=True), job(1, 2, left=10), job(2, 2, left=70)]
    assert names(SrtfJobs(), jobs, 2) == ["1"]


def test_las_counts_devices_times_seconds() -> None:
    """Ten seconds on four devices are 40 of service: that is demoted, 30 s on one device are not."""
    las = LasJobs(Levels(thresholds=(35.0,)))
    jobs = [job(0, 4, ran=10, is_running=True), job(1, 1, ran=30)]
    assert names(las, jobs, 4) == ["1"]
    assert las.changes_in(jobs[1]) == 5.0


def test_las_lets_those_of_a_queue_run_on() -> None:
    """Nobody gives way to a job of the same queue, even one that came first."""
    las = LasJobs(Levels(thresholds=(100.0,)))
    running = job(1, ran=50)
    assert names(las, [running], 1) == ["1"]
    assert names(las, [job(0), running], 1) == ["1"]


def test_las_puts_whoever_is_demoted_at_the_end_of_the_queue() -> None:
    """A job that crosses a threshold gives way to those who wait in the lower queue already."""
    las = LasJobs(Levels(thresholds=(100.0,)))
    first, second = job(0), job(1)
    assert names(las, [first, second], 1) == ["0"]
    first.recent = 100.0
    assert names(las, [first, second], 1) == ["1"]
    second.recent = 100.0
    assert names(las, [first, second], 1) == ["0"]


def test_gittins_serves_the_larger_index() -> None:
    """Of jobs that need 1 or 100, those that are new come before one that turned out to be long."""
    gittins = GittinsJobs(ServiceDistribution([1.0] * 9 + [100.0]).stages())
    assert names(gittins, [job(0, ran=1, is_running=True), job(1)], 1) == ["1"]
    # Where old jobs are nearly done, they go first.
    increasing = GittinsJobs(ServiceDistribution([99.0, 100.0]).stages())
    old = job(1, ran=90)
    assert names(increasing, [old], 1) == ["1"]
    assert names(increasing, [job(0), old], 1) == ["1"]


jobs_to_choose_of = st.lists(
    st.builds(
        lambda devices, ran, left: (devices, ran, left), st.integers(1, 8), st.floats(0, 500), st.floats(0.1, 500)
    ),
    max_size=12,
)
policies = st.sampled_from(
    [
        FifoJobs(),
        FifoJobs(backfill=True),
        SrtfJobs(),
        LasJobs(Levels(thresholds=(10.0, 100.0))),
        GittinsJobs(ServiceDistribution([5.0, 50.0, 500.0]).stages()),
    ]
)


@given(policy=policies, described=jobs_to_choose_of)
def test_devices_are_never_promised_twice_and_never_left_without_reason(
    policy: JobPolicy, described: list[tuple[int, float, float]]
) -> None:
    """Those chosen fit together; whoever overtakes leaves nothing free that somebody who waits could use."""
    jobs = [job(number, devices, ran=ran, left=left) for number, (devices, ran, left) in enumerate(described)]
    chosen = choose(policy, jobs, 8)
    free = 8 - sum(each.devices for each in chosen)
    assert free >= 0
    waiting = [each for each in jobs if each not in chosen]
    if policy.overtakes:
        assert all(each.devices > free for each in waiting)
    elif waiting:
        assert min(waiting, key=policy.rank).devices > free
