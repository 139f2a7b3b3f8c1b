"""Lease a device's memory to sessions: how far each may grow, out of its user's quota and what the device has left.

A user's quota is leased to those of their sessions that have a cell open, in equal parts beyond what each holds
already; the others may only keep what they have. Nobody is leased what the device has not got. How a lease is made to
hold is the device's own matter: a limit on the process (host) or on torch's allocator (CUDA).

What each user holds is kept, with the sum, so that the cost of a lease does not grow with the number of other users.
`dispatch/lease_renewal.py` knows whose leases are to be renewed when.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import quota_of, used_by
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.protocol import Allowance, Device, Limits
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: what an idle session may grow by while another of its user's sessions works
IDLE_GROWTH_BYTES = 64 << 20
#: other users whom a session's error messages name as those who hold most
NUM_HOLDERS = 3
#: allowances that differ by less are not worth telling
WORTH_TELLING_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMemory:
    """The sessions of one user, and the bytes on their shelf."""

    user: str
    sessions: Collection[SessionHandle]
    shelf: int


class Leases:
    """Who may have how much of one device.

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
        self._warned: dict[str, int] = {}
        #: bytes that each user has on the device, and their sum
        self._held: dict[str, int] = {}
        self._sum = 0
        #: of that, bytes on the shelves of users who have any there
        self._shelves: dict[str, int] = {}
        #: heap of what users hold, negated; outdated entries too
        self._most: list[tuple[int, str]] = []

    def update(self, users: Iterable[UserMemory]) -> None:
        """Lease anew to the sessions of *users*; what the others were found to hold last still counts."""
        used = [(memory, memory.shelf + used_by(memory.sessions)) for memory in users]
        for memory, size in used:
            self._set_held(memory, size)
        free = max(0, self._device.usable_bytes - self._sum)
        holders = self._largest_holders()
        for memory, size in used:
            others = tuple(holder for holder in holders if holder[0] != memory.user)[:NUM_HOLDERS]
            if memory.sessions:
                self._update_user(memory, used=size, free=free, holders=others)

    def shelf_of(self, user: str) -> int:
        """Return the bytes that the shelf of *user* was last charged with."""
        return self._shelves.get(user, 0)

    def _set_held(self, memory: UserMemory, used: int) -> None:
        self._shelves.pop(memory.user, None)
        if memory.shelf:
            self._shelves[memory.user] = memory.shelf
        held = used + sum([session.memory.framework for session in memory.sessions])
        before = self._held.pop(memory.user, None)
        self._sum += held - (before or 0)
        if not memory.sessions and not held:
            return
        self._held[memory.user] = held
        if held != before:
            heapq.heappush(self._most, (-held, memory.user))
            if len(self._most) > 2 * len(self._held) + 16:
                self._most = [(-each, user) for user, each in self._held.items()]
                heapq.heapify(self._most)

    def _largest_holders(self) -> list[tuple[str, int]]:
        """Return the users who hold most, with their bytes, the largest first: one more than anybody is told."""
        found: dict[str, int] = {}
        while self._most and len(found) <= NUM_HOLDERS:
            negated, user = heapq.heappop(self._most)
            if self._held.get(user) == -negated:
                found[user] = -negated
        for user, held in found.items():
            heapq.heappush(self._most, (-held, user))
        return list(found.items())

    def warn_of_quota(self, limits: Limits) -> None:
        """Warn in the log, once, that a user's quota is more than the device can ever give."""
        quota = quota_of(limits, self._device)
        if quota > self._device.usable_bytes and self._warned.get(limits.user) != quota:
            self._warned[limits.user] = quota
            log.warning(
                "the quota of %s, %s, is more than this device can give (%s); name a smaller quota, or more with "
                "--capacity.",
                limits.user,
                format_bytes(quota),
                format_bytes(self._device.usable_bytes),
            )

    def _update_user(self, memory: UserMemory, *, used: int, free: int, holders: tuple[tuple[str, int], ...]) -> None:
        own = memory.sessions
        quota = quota_of(next(iter(own)).limits, self._device)
        remainder = max(0, min(quota - used, free))
        working = [session for session in own if session.page.words[Word.TURN] != Turn.IDLE] or own
        for session in own:
            growth = remainder // len(working) if session in working else min(remainder, IDLE_GROWTH_BYTES)
            own_bytes = session.own_bytes
            allowance = Allowance(
                limit_bytes=own_bytes + growth,
                quota_bytes=quota,
                others_bytes=max(0, used - own_bytes),
                capacity_bytes=self._device.capacity_bytes,
                holders=holders,
            )
            self._notify(session, allowance)
