"""The check of a user's quota of memory: what counts, whether more bytes fit, and the figures of a refusal. Pure.

The rule, here and nowhere else: a user has the persistent memory of all their notebooks and their shelf, and for each
open section what is live, or what it was measured to need if that is more. Needs count once, the largest of them:
sessions take turns, and their iterations use the same bytes one after the other. Predictions do not count.

Code that enforces a quota fills in a :class:`QuotaUse` and asks it:

- the core, before a grant and before a restore: `scheduling/memory/refusals.py`;
- the session, when its memory was measured: `session/memory/lease_check.py`;
- the executor, for the shelf: `executor/shelf/store.py`;
- the executor, for memory outside torch: `executor/devices/overuse.py`.

`gateway/config/quotas.py` has the quotas, `executor/processes/user_quota.py` what counts against them,
`executor/devices/leases.py` divides them among sessions, and `status/refusal_text.py` has the sentences.

In the session, three places raise `torch.OutOfMemoryError` with these sentences: `session/memory/lease_check.py` (what
was measured is too much, or torch's own allocator failed at the lease), `session/gate/sections.py` (the core refused
a grant or growth) and `session/offload/residency.py` (it refused a restore). The core's refusals get there through
`executor/dispatch/action_runner.py`. On a GPU with lanes the session also holds torch's allocator to its lease
(`LaneTurns.check_limit` in `session/lanes/lane_turns.py`); torch then fails, and `lease_check.py` says why. The number
of a user's sessions is checked where they start, in `gateway/kernels/starting.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

#: private memory that the host device allows besides what the figures say, and that comes back with what was offloaded:
#: stacks of new threads, fragments of the heap, what is allocated between two looks; at the limit itself not even the
#: session's sockets work
SLACK_BYTES = 64 << 20
#: least that an idle notebook must hold for others to ask for it, in bytes
LEAST_ROOM = 16 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMemory:
    """One session's memory as a quota counts it, in bytes."""

    persistent: int
    #: in use now beyond persistent memory, or promised
    live: int = 0
    #: what an iteration of its open section was measured to need
    needed: int = 0

    @property
    def outstanding(self) -> int:
        """Bytes that an iteration is known to need and does not have yet."""
        return max(0, self.needed - self.live)


def count(sessions: Iterable[CountedMemory]) -> int:
    """Return the bytes that the *sessions* of one user count."""
    total = outstanding = 0
    for session in sessions:
        total += session.persistent + session.live
        outstanding = max(outstanding, session.outstanding)
    return total + outstanding


def count_others(sessions: Collection[CountedMemory]) -> list[int]:
    """Return for each of one user's *sessions* the bytes that all others count."""
    total = sum(session.persistent + session.live for session in sessions)
    largest, second = sorted((0, 0, *(session.outstanding for session in sessions)), reverse=True)[:2]
    return [
        total - session.persistent - session.live + (second if session.outstanding == largest else largest)
        for session in sessions
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """A user's quota on one device, and what counts against it; bytes."""

    #: None: not limited
    quota: int | None
    #: what the user's sessions have of it, or only those that somebody asks about
    sessions: int
    #: what is on the user's shelf, or still in use from there
    shelf: int = 0

    @property
    def left(self) -> int | None:
        """Bytes that the quota leaves, negative beyond it; None: not limited."""
        return None if self.quota is None else self.quota - self.sessions - self.shelf

    def exceeded_by(self, more: int) -> int:
        """Return by how many bytes *more* bytes would exceed the quota; 0: they fit, as nothing more always does."""
        left = self.left
        return 0 if left is None or more <= 0 else max(0, more - left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Figures of memory that was refused, in bytes; `status/refusal_text.py` puts them into words."""

    #: over the user's quota; more than the device has for it; waited for in vain. A metric label
    reason: Literal["quota", "no_lane_fits", "memory"]
    #: what the memory was wanted for
    purpose: Literal["iteration", "growth", "restore", "context"]
    #: None: not known
    wanted: int | None
    #: the user's quota, and what counts against it
    use: QuotaUse
    #: what the session keeps, and what the device has beside that
    kept: int
    room: int
    capacity: int
    reserve: int
    #: what is free at this moment, and what is set aside for iterations
    free: int
    lanes: int
    #: seconds of waiting; 0: there was none worth mentioning
    waited: float = 0.0
    #: users and what each of them keeps, the largest first
    holders: tuple[tuple[str, int], ...] = ()
