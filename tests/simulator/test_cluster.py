"""Whole jobs on a cluster: what each policy makes of small traces, and what none may do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.policies.levels import Levels
from sharedkernel.scheduling.policies.whole_jobs import JobPolicyName, LasJobs, SrtfJobs
from sharedkernel.simulator.cluster import Cluster, ClusterOptions, JobRun, simulate_cluster
from sharedkernel.simulator.traces import TraceJob, alike, heavy_tailed


def jobs_of(*described: tuple[float, float, int]) -> list[TraceJob]:
    """Return jobs of (submitted, duration, devices)."""
    return [
        TraceJob(id=str(number), submitted=submitted, duration=duration, devices=devices)
        for number, (submitted, duration, devices) in enumerate(described)
    ]


def ends(runs: list[JobRun]) -> list[float]:
    return [pytest.approx(run.ended, abs=1e-4) for run in runs]


def test_srtf_preempts_and_loses_nothing() -> None:
    """A long job is interrupted by a short one and goes on where it was."""
    runs = Cluster(jobs_of((0, 100, 2), (10, 5, 1)), devices=2, policy=SrtfJobs()).run()
    assert ends(runs) == [105, 15]
    assert runs[0].stretches == [(0, 10), (15, 105)]
    assert runs[0].preemptions == 1


def test_las_demotes_at_the_threshold() -> None:
    """A job gives way when its service crosses the threshold, not before, and comes back when the younger are done."""
    las = LasJobs(Levels(thresholds=(40.0,)))
    runs = Cluster(jobs_of((0, 30, 2), (5, 10, 2)), devices=2, policy=las).run()
    assert ends(runs) == [40, 30]
    assert [round(part, 3) for stretch in runs[0].stretches for part in stretch] == [0, 20, 30, 40]


def test_a_job_that_is_too_large_is_left_out() -> None:
    """It is counted and not finished; the others run as if it had not come."""
    outcome = simulate_cluster(jobs_of((0, 10, 9), (1, 10, 8)), "fifo", ClusterOptions(devices=8))
    figures = outcome.figures()
    assert (figures["jobs"], figures["finished"], figures["avg_jct_seconds"]) == (2, 1, 10.0)


def test_figures_of_a_run() -> None:
    """Every fixed name, with the values that can be told by hand."""
    options = ClusterOptions(devices=2)
    figures = simulate_cluster(jobs_of((0, 10, 2), (0, 30, 2)), "fifo", options).figures()
    assert figures == {
        "policy": "fifo",
        "jobs": 2,
        "finished": 2,
        "avg_jct_seconds": 25.0,
        "p50_jct_seconds": 25.0,
        "p95_jct_seconds": pytest.approx(38.5),
        "max_jct_seconds": 40.0,
        "makespan_seconds": 40.0,
        "avg_wait_seconds": 5.0,
        "preemptions": 0,
        "utilization": 1.0,
        "jain_index": pytest.approx((1 + 0.75) ** 2 / (2 * (1 + 0.75**2))),
    }


def test_nothing_finished_has_no_figures() -> None:
    """Where no job could run, figures of jobs are None, not 0."""
    figures = simulate_cluster(jobs_of((0, 10, 2)), "srtf", ClusterOptions(devices=1)).figures()
    assert figures["finished"] == 0
    assert figures["avg_jct_seconds"] is figures["utilization"] is figures["jain_index"] is None


def test_thresholds_that_do_not_increase_are_refused() -> None:
    """With one sentence."""
    with pytest.raises(ConfigError, match="increase"):
        ClusterOptions(devices=1, las_thresholds=(2.0, 1.0))


described_jobs = st.lists(st.tuples(st.floats(0, 50), st.floats(0.5, 80), st.integers(1, 4)), min_size=1, max_size=15)
cluster_options = st.builds(
    ClusterOptions,
    devices=st.just(4),
    backfill=st.booleans(),
    las_thresholds=st.sampled_from([None, (5.0,), (10.0, 20.0, 40.0)]),
    from_trace=st.booleans(),
)


@given(policy=st.sampled_from(list(JobPolicyName)), described=described_jobs, options=cluster_options)
def test_every_job_gets_its_time_and_no_device_is_used_twice(
    policy: str, described: list[tuple[float, float, int]], options: ClusterOptions
) -> None:
    """Whatever the policy, all jobs are done after exactly their time, and at no moment more devices are used."""
    jobs = jobs_of(*described)
    outcome = simulate_cluster(jobs, policy, options)
    ran = [0.0] * len(jobs)
    changes = []
    for span in outcome.spans:
        ran[span.job] += span.ended - span.started
        assert span.started >= jobs[span.job].submitted - 1e-6
        changes += [(span.ended, -span.devices), (span.started, span.devices)]
    assert ran == pytest.approx([job.duration for job in jobs], abs=1e-3)
    assert len(outcome.completion_times) == len(jobs)
    level = 0.0
    for _, change in sorted(changes):
        level += change
        assert level <= 4


def test_gittins_is_better_than_las_where_it_knows_the_distribution() -> None:
    """On heavy tails of single-device jobs both are far better than first come, first served, and Gittins is best."""
    jobs = [
        TraceJob(id=job.id, devices=1, submitted=job.submitted, duration=job.duration)
        for job in heavy_tailed(jobs=600, devices=1, seed=0, load=0.9)
    ]
    options = ClusterOptions(devices=1, from_trace=True)
    means = {
        name: simulate_cluster(jobs, name, options).figures()["avg_jct_seconds"] for name in ("fifo", "las", "gittins")
    }
    assert means["gittins"] <= means["las"] < 0.7 * means["fifo"]  # type: ignore[operator]


def test_gittins_never_preempts_jobs_that_are_alike() -> None:
    """Where lengths are nearly the same, it knows that giving way gains nothing worth it."""
    jobs = alike(jobs=300, devices=4, seed=0)
    gittins = simulate_cluster(jobs, "gittins", ClusterOptions(devices=4, from_trace=True)).figures()
    fifo = simulate_cluster(jobs, "fifo", ClusterOptions(devices=4)).figures()
    assert gittins["preemptions"] == 0
    assert gittins["avg_jct_seconds"] == pytest.approx(fifo["avg_jct_seconds"])


def test_workloads_repeat_and_keep_devices_busy() -> None:
    """The same seed is the same workload; its work is as much as was asked for."""
    jobs = heavy_tailed(jobs=2000, devices=16, seed=4)
    assert jobs == heavy_tailed(jobs=2000, devices=16, seed=4)
    assert jobs != heavy_tailed(jobs=2000, devices=16, seed=5)
    work = sum(job.duration * job.devices for job in jobs)
    assert work / (16 * jobs[-1].submitted) == pytest.approx(0.9, rel=0.1)
