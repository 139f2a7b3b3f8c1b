"""Jobs and heterogeneous devices: who runs where and in which order, for the least mean completion time.

AlloX (EuroSys'20): on one device, the k-th job from the end makes its own time count k times, for itself and the k - 1
that wait for it. So jobs are matched to (device, position from the end), each pair at the cost

    when the device is available - when the job came + k * the job's time there,

and the cheapest matching (`scipy.optimize.linear_sum_assignment`) is the best of all schedules without preemption for
jobs that are there now. Online it is solved anew whenever a device is idle, and only the first job of each idle device
is started; the rest of the plan is thrown away, since newcomers may change it.

Fairness by alpha: only the jobs of the ceil(alpha * users) users who have attained least take part, so 1 is all for the
mean and less is fairer. While that leaves an idle device without a waiting job, alpha is doubled.

Starvation: with alpha 1 a long job may wait while shorter ones keep coming, by design. With a smaller one a user
who waits attains nothing and so comes to take part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy

from sharedkernel.errors import ConfigError

#: most jobs that take part in one matching: its cost grows with their cube
_MOST_JOBS = 50
#: what weighs against places behind one another, relative to times: of schedules with the same mean, the one that
#: spreads jobs over more devices is done sooner
_EVENNESS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedJob:
    """A job that needs one device, of whatever kind."""

    id: str
    user: str = ""
    #: when it came, seconds
    arrived: float = 0.0
    #: seconds it takes by kind of device, for each that there is
    seconds: Mapping[str, float]

    @property
    def best(self) -> float:
        """Seconds it takes on the kind that suits it best."""
        return min(self.seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedDevice:
    """A device that runs one job at a time."""

    id: str
    kind: str
    #: when it has done what it was given, seconds
    available: float = 0.0


def match(jobs: Sequence[MatchedJob], devices: Sequence[MatchedDevice]) -> dict[str, list[MatchedJob]]:
    """Return each device's jobs, first to run first, for the least mean completion time of all.

    Parameters
    ----------
    jobs, devices
        All of them; the cost is cubic in the jobs.

    Raises
    ------
    ConfigError
        When scipy is missing.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError("the policy allox needs scipy; install it with `pip install scipy`.") from None
    plan: dict[str, list[MatchedJob]] = {device.id: [] for device in devices}
    if not jobs:
        return plan
    times = numpy.array([[job.seconds[device.kind] for device in devices] for job in jobs])
    available = numpy.array([device.available for device in devices])
    arrived = numpy.array([job.arrived for job in jobs])
    places = numpy.arange(1, len(jobs) + 1)
    # (num_jobs, num_devices, num_places)
    weights = places + _EVENNESS * (places - 1)
    costs = (available[None, :] - arrived[:, None])[:, :, None] + times[:, :, None] * weights
    rows, columns = linear_sum_assignment(costs.reshape(len(jobs), -1))
    chosen = sorted(zip(columns.tolist(), rows.tolist(), strict=True), reverse=True)
    for column, row in chosen:
        # From the end of the schedule: the largest place runs first.
        plan[devices[column // len(jobs)].id].append(jobs[row])
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AlloX:
    """Decides online which waiting jobs start on which idle devices.

    Raises
    ------
    ConfigError
        When alpha is not in (0, 1].
    """

    #: part of the users whose jobs take part, those who attained least
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha}; it is the part of the users who take part, above 0 and up to 1.")

    def start(
        self, waiting: Sequence[MatchedJob], devices: Sequence[MatchedDevice], attained: Mapping[str, float], now: float
    ) -> dict[str, MatchedJob]:
        """Return which job each idle device is to start now; devices that are better left to a later job are left out.

        Parameters
        ----------
        waiting
            Jobs that have not started.
        devices
            All, those available later included.
        attained
            What each user was served, in seconds of the device that suits each job best; 0 of those not named.
        now
            Seconds.
        """
        if not any(device.available <= now for device in devices):
            return {}
        users = sorted({job.user for job in waiting}, key=lambda user: (attained.get(user, 0.0), user))
        alpha = self.alpha
        while True:
            eligible = set(users[: math.ceil(alpha * len(users) - 1e-9)])
            jobs = shortest_by_kind([job for job in waiting if job.user in eligible], _MOST_JOBS)
            plan = match(jobs, [replace(device, available=max(now, device.available)) for device in devices])
            started = {d.id: plan[d.id][0] for d in devices if d.available <= now and plan[d.id]}
            if started or alpha >= 1:
                return started
            alpha = min(1.0, 2 * alpha)


def shortest_by_kind(jobs: Sequence[MatchedJob], most: int) -> list[MatchedJob]:
    """Return the shortest jobs, by turns on each kind of device.

    Parameters
    ----------
    jobs
        To choose from.
    most
        Most jobs to return.
    """
    if len(jobs) <= most:
        return list(jobs)
    kinds = sorted({kind for job in jobs for kind in job.seconds})
    orders = [iter(sorted(jobs, key=lambda job: (job.seconds[kind], job.arrived))) for kind in kinds]
    chosen: dict[str, MatchedJob] = {}
    while len(chosen) < most:
        for order in orders:
            job = next((job for job in order if job.id not in chosen), None)
            if job is not None and len(chosen) < most:
                chosen[job.id] = job
    return list(chosen.values())
