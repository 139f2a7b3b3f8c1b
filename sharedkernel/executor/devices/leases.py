"""Lease a device's memory to sessions: how far each may grow, out of its user's quota and what the device has left.

All that the quota and the device leave is leased to each session with an open cell: sessions take turns, and whoever
takes a part of it leaves less to the others at the next look, but never less than they have and their iterations are
known to need. Idle sessions may only keep what they have. Nobody is leased what the device has not got. How a lease is
made to hold is the device's own matter: a limit on the process (host) or on torch's allocator (CUDA).

What each user holds is kept. `dispatch/users.py` knows whose leases are to be renewed when.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import kept_beside, most_of_user, quota_of, used_by
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.protocol import Allowance, Device
from sharedkernel.quota_check import CountedMemory, count_others

#: what an idle session may grow by while another of its user's sessions works
IDLE_GROWTH_BYTES = 64 << 20
#: other users whom a session's error messages name as those who hold most
NUM_HOLDERS = 3
#: allowances that differ by less are not worth telling
_WORTH_TELLING_BYTES = 1 << 20
_NOTHING = CountedMemory(persistent=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMemory:
    """The sessions of one user, and the bytes on their shelf."""

    user: str
    sessions: Collection[SessionHandle]
    shelf: int


class _Look:
    """The memory of one user at one moment."""

    def __init__(self, memory: UserMemory) -> None:
        self.user, self.shelf, self.sessions = memory.user, memory.shelf, list(memory.sessions)
        self.figures = [session.counted for session in self.sessions]
        #: what lingers counts for no quota, so it leaves its user's other sessions what it has
        self.counting = [
            counted if session.lingers_until is None else _NOTHING
            for session, counted in zip(self.sessions, self.figures, strict=True)
        ]
        self.used = used_by(self.sessions, self.figures)


class Leases:
    """The bytes that each session may have of one device.

    Parameters
    ----------
    device
        Whose capacity is leased.
    notify
        Called with each session and its allowance; decides whether it is worth telling.
    """

    def __init__(self, device: Device, notify: Callable[[SessionHandle, Allowance], None]) -> None:
        self._device = device
        self._notify = notify
        #: bytes that each user has on the device
        self._held: dict[str, int] = {}
        #: bytes that iterations are known to need beyond that, the largest need of each user who has any
        self._outstanding: dict[str, int] = {}

    def update(self, users: Iterable[UserMemory], others: Iterable[UserMemory] = ()) -> None:
        """Lease anew to the sessions of *users*, and look at what *others* hold; of the rest, the last look counts."""
        # Looked at once: a session makes and frees memory meanwhile, and a lease is the sum of figures of one moment.
        looks = [_Look(memory) for memory in users]
        for look in (*looks, *map(_Look, others)):
            self._set_held(look)
        taken = sum(self._held.values()) + max(self._outstanding.values(), default=0)
        free = max(0, self._device.usable_bytes - taken)
        holders = heapq.nsmallest(NUM_HOLDERS + 1, self._held.items(), key=lambda held: (-held[1], held[0]))
        for look in looks:
            named = tuple(holder for holder in holders if holder[0] != look.user)[:NUM_HOLDERS]
            if look.sessions:
                self._update_user(look, free=free, holders=named)

    def _set_held(self, look: _Look) -> None:
        outstanding = max((counted.outstanding for counted in look.counting), default=0)
        self._outstanding.pop(look.user, None)
        if outstanding:
            self._outstanding[look.user] = min(outstanding, most_of_user(look.sessions))
        held = look.shelf + max(0, look.used + kept_beside(look.sessions) - outstanding)
        self._held.pop(look.user, None)
        if look.sessions or held:
            self._held[look.user] = held

    def _update_user(self, look: _Look, *, free: int, holders: tuple[tuple[str, int], ...]) -> None:
        quota = quota_of(look.sessions[0].limits, self._device)
        remainder = max(0, min(quota - look.used - look.shelf, free))
        is_any_working = any(map(_is_working, look.sessions))
        of_others = count_others(look.counting)
        for session, counted, others in zip(look.sessions, look.figures, of_others, strict=True):
            growth = remainder if _is_working(session) or not is_any_working else min(remainder, IDLE_GROWTH_BYTES)
            allowance = Allowance(
                # What its iterations are known to need stays its own, whatever its user's other sessions grow to.
                limit_bytes=counted.persistent + max(counted.live, counted.needed) + growth,
                quota_bytes=quota,
                others_bytes=min(others, max(0, look.used)) + look.shelf,
                capacity_bytes=self._device.capacity_bytes,
                holders=holders,
            )
            self._notify(session, allowance)


def is_worth_telling(sent: Allowance | None, allowance: Allowance, moved: int) -> bool:
    """Return whether a session should know *allowance*; *moved*: bytes by which its limit differs from the one sent."""
    if sent is None or sent.quota_bytes != allowance.quota_bytes:
        return True
    return max(abs(sent.others_bytes - allowance.others_bytes), abs(moved)) >= _WORTH_TELLING_BYTES


def _is_working(session: SessionHandle) -> bool:
    return session.page.words[Word.TURN] != Turn.IDLE
