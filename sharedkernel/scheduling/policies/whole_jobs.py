"""Policies for whole jobs on many devices: which of them run now.

A job wants a number of devices, all at once, for as long as it takes. This is Tiresias's setting (NSDI'19); notebooks
in lanes are not involved. A policy *ranks* the jobs; :func:`choose` walks along the ranking and lets run what fits.
Running jobs that it passes over are preempted, all of their devices at once: nothing is lost, and nothing is paid.

Which devices a job gets is `placement.py`'s question. Ties end in arrival number.

Starvation, by policy, with a stream of jobs that never ends:

fifo, strict
    none starves: a job runs once those before it are done.
fifo with backfill
    a job that needs many devices starves while smaller ones keep coming. By design: that is what backfill without
    reservations does, and what Tiresias's baseline did.
srtf
    long jobs starve while shorter ones keep coming. By design.
las, gittins
    old jobs starve while young ones keep coming. By design; Tiresias's knob, which puts jobs that have waited for long
    back to the highest queue, is left out. One that was never served is there and waits like with fifo and backfill.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from sharedkernel.scheduling.policies.levels import Levels

#: what jobs are sorted by, smaller first
JobRank = tuple[float, ...]


class JobPolicyName(StrEnum):
    """Policies for whole jobs by their names."""

    FIFO = "fifo"
    SRTF = "srtf"
    LAS = "las"
    GITTINS = "gittins"


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A job as the policies see it. What it will need in all is known to `srtf` alone."""

    #: devices it needs, all of them at once
    devices: int
    #: number of its arrival, counted over all jobs
    arrival: int
    #: seconds of running that are left; an oracle's, or predicted
    remaining: float = math.inf
    #: seconds it ran so far
    executed: float = 0.0
    #: the same, but for rounding: beyond each threshold that it was to reach
    aged: float = 0.0
    is_running: bool = False
    #: the queue it was in when it was chosen last who runs, and its place there; infinite: it was in none
    queue: int = 0
    place: float = math.inf

    @property
    def age(self) -> float:
        """Attained service, device-seconds: Tiresias's two dimensions."""
        return self.aged * self.devices


class JobPolicy(ABC):
    """A ranking of jobs."""

    #: whether running jobs may be preempted for others
    is_preemptive: ClassVar[bool] = True
    #: whether jobs may run while one ranked before them waits for devices
    overtakes: bool = True

    @abstractmethod
    def rank(self, job: Job) -> JobRank:
        """Return *job*'s place in the order of service. Asked of every job whenever anything changes."""

    def changes_in(self, job: Job) -> float:
        """Return after how many more seconds of running *job*'s rank changes; infinite: it does not by running."""
        return math.inf

    def note_chosen(self, ranked: Sequence[Job], chosen: Sequence[Job]) -> None:
        """Record which jobs run now.

        Parameters
        ----------
        ranked
            All jobs, first to run first.
        chosen
            Those of them that run.
        """
        return


class FifoJobs(JobPolicy):
    """In the order of arrival, each to its end.

    Parameters
    ----------
    backfill
        Whether later jobs that fit run while an earlier one waits for more devices than are free.
    """

    is_preemptive = False

    def __init__(self, *, backfill: bool = False) -> None:
        self.overtakes = backfill

    def rank(self, job: Job) -> JobRank:
        """See :meth:`JobPolicy.rank`."""
        return (job.arrival,)


class SrtfJobs(JobPolicy):
    """Shortest remaining time first: the order that knows everything (Schrage 1968)."""

    def rank(self, job: Job) -> JobRank:
        """See :meth:`JobPolicy.rank`."""
        return (job.remaining, job.arrival)


class LasJobs(JobPolicy):
    """Least attained service first, in discretised queues: Tiresias's 2D-LAS (NSDI'19 §4.3).

    A queue is first come, first served: who is demoted into it stands at its end, whether it runs or not.
    Those of a queue that run come before those that wait, so that they go on until a higher queue needs their devices,
    or they leave the queue. So it is in Tiresias's published simulator, to the job.

    With the stages of a distribution of service as levels it is largest Gittins index first: Tiresias's 2D-Gittins,
    done right. Tiresias's published simulator looks ahead by one fixed amount of service; here each stage ends where
    the index drops, so that stages are queues: inside one the index of a job that runs is at least that of its start.

    Parameters
    ----------
    levels
        Thresholds of attained service, or what returns them: they may be learned as jobs end.
    """

    def __init__(self, levels: Levels | Callable[[], Levels]) -> None:
        self._levels: Callable[[], Levels] = (lambda: levels) if isinstance(levels, Levels) else levels

    @property
    def levels(self) -> Levels:
        """The thresholds as they are now."""
        return self._levels()

    def rank(self, job: Job) -> JobRank:
        """See :meth:`JobPolicy.rank`."""
        level = self.levels.level(job.age)
        return (level, job.place if job.queue == level else math.inf, job.arrival)

    def changes_in(self, job: Job) -> float:
        """See :meth:`JobPolicy.changes_in`: when its service crosses the next threshold."""
        return self.levels.room(job.age) / job.devices

    def note_chosen(self, ranked: Sequence[Job], chosen: Sequence[Job]) -> None:
        """See :meth:`JobPolicy.note_chosen`."""
        running = set(chosen)
        for place, job in enumerate(sorted(ranked, key=lambda job: job not in running)):
            job.queue, job.place = self.levels.level(job.age), place


def choose(policy: JobPolicy, jobs: Iterable[Job], devices: int) -> list[Job]:
    """Return which of *jobs* run now, in the policy's order.

    Parameters
    ----------
    policy
        Who ranks them.
    jobs
        All that came and are not done; none needs more than *devices*.
    devices
        How many there are.
    """
    chosen: list[Job] = []
    free = devices
    waiting = list(jobs)
    if not policy.is_preemptive:
        chosen = [job for job in waiting if job.is_running]
        free -= sum(job.devices for job in chosen)
        waiting = [job for job in waiting if not job.is_running]
    ranked = sorted(waiting, key=policy.rank)
    for job in ranked:
        if job.devices <= free:
            chosen.append(job)
            free -= job.devices
        elif not policy.overtakes:
            break
        if not free:
            break
    policy.note_chosen(ranked, chosen)
    return chosen
