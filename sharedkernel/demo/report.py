"""The report of the demo: figures per user, how fair it was, what stayed resident.

Fairness is measured where it means something: over the moments in which at least two users wanted the device. What
each of them got there, over what its share entitled it to, goes into Jain's index (1: everybody got the same part of
their due, 1/n: one got everything).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharedkernel.demo.runs import NotebookRun
from sharedkernel.simulator.report import jain_index
from sharedkernel.status.document import StatusDocument, UserStatus

#: states in which a session wants the device
_WANTING = frozenset({"queued", "waiting", "running", "preempting"})
#: device-seconds a user must have been due before their part says anything, given how coarse the samples are
_LEAST_DUE = 1.0


class FairnessMeter:
    """Collects, sample by sample, what each user got of the device and what was their due."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._wanting_before: set[str] = set()
        self._got: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def sample(self, status: StatusDocument) -> None:
        """Record one status document; a few a second are enough."""
        service = {user.name: user.attained_service_seconds for user in status.users}
        shares = {user.name: user.share for user in status.users}
        wanting = {session.user for session in status.sessions if session.state in _WANTING}
        contending = wanting & self._wanting_before & self._before.keys()
        if len(contending) >= 2:
            got = {user: service[user] - self._before[user] for user in contending}
            shared = sum(got.values())
            shares_present = sum(shares[user] for user in contending)
            for user in contending:
                self._got[user] = self._got.get(user, 0.0) + got[user]
                self._due[user] = self._due.get(user, 0.0) + shared * shares[user] / shares_present
        self._before, self._wanting_before = service, wanting

    def index(self) -> float | None:
        """Return Jain's index; None when no two users ever wanted the device for long enough together."""
        parts = [self._got[user] / due for user, due in self._due.items() if due >= _LEAST_DUE]
        return jain_index(parts) if len(parts) >= 2 else None


def make_report(
    runs: Sequence[NotebookRun], status: StatusDocument, *, wall_seconds: float, jain: float | None
) -> dict[str, Any]:
    """Return the report; programs that read the JSON rely on its names.

    Parameters
    ----------
    runs
        The notebooks, all ended.
    status
        The whole status document, taken when all had ended and their kernels were still up.
    wall_seconds
        From the first notebook's start to the last one's end.
    jain
        Jain's index, from :class:`FairnessMeter`.
    """
    users = {user.name: user for user in status.users}
    total = sum(user.attained_service_seconds for user in users.values())
    return {
        "ok": not any(run.failure for run in runs),
        "wall_seconds": wall_seconds,
        "jain_index": jain,
        "users": [
            _user_report(name, [run for run in runs if run.user == name], users.get(name), total)
            for name in dict.fromkeys(run.user for run in runs)
        ],
    }


def _user_report(name: str, runs: Sequence[NotebookRun], user: UserStatus | None, total: float) -> dict[str, Any]:
    # A user whose kernel never started is not in the document.
    figures = user or UserStatus(name=name)
    return {
        "name": name,
        "notebooks": len(runs),
        "failed": sum(run.failure is not None for run in runs),
        "iterations": figures.iterations,
        "device_seconds": figures.attained_service_seconds,
        "share": figures.share,
        "device_fraction": figures.attained_service_seconds / total if total else 0.0,
        "wait_p50_seconds": figures.wait_p50_seconds,
        "wait_p95_seconds": figures.wait_p95_seconds,
        "peak_bytes": figures.peak_bytes,
        "resident_bytes": figures.persistent_bytes,
    }
