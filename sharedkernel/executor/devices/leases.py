"""Lease a device's memory to sessions: how far each may grow, out of its user's quota and what the device has left.

A user's quota is leased to those of their sessions that have a cell open, in equal parts beyond what each holds
already; the others may only keep what they have. Nobody is leased what the device has not got. How a lease is made to
hold is the device's own matter: a limit on the process (host) or on torch's allocator (CUDA).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.quota_use import quota_of, used_by
from sharedkernel.protocol import Allowance, Device, Limits
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: what an idle session may grow by while another of its user's sessions works
IDLE_GROWTH_BYTES = 64 << 20
#: other users whom a session's error messages name as those who hold most
NUM_HOLDERS = 3
#: allowances that differ by less are not worth telling
WORTH_TELLING_BYTES = 1 << 20


def _held(by_user: Mapping[str, list[SessionHandle]], shelves: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that each user has on the device."""
    held = dict(shelves)
    for user, own in by_user.items():
        held[user] = held.get(user, 0) + used_by(own) + sum(session.memory.framework for session in own)
    return held


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

    def update(self, sessions: Iterable[SessionHandle], busy: set[str], shelves: Mapping[str, int]) -> None:
        """Lease anew to all *sessions*, of which those named in *busy* have a cell open."""
        by_user: dict[str, list[SessionHandle]] = {}
        for session in sessions:
            by_user.setdefault(session.user or "", []).append(session)
        held = _held(by_user, shelves)
        free = max(0, self._device.usable_bytes - sum(held.values()))
        holders = heapq.nlargest(NUM_HOLDERS + 1, held.items(), key=lambda holder: holder[1])
        for user, own in by_user.items():
            others = tuple(holder for holder in holders if holder[0] != user)[:NUM_HOLDERS]
            self._update_user(own, busy, free=free, shelf=shelves.get(user, 0), holders=others)

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

    def _update_user(
        self, own: list[SessionHandle], busy: set[str], *, free: int, shelf: int, holders: tuple[tuple[str, int], ...]
    ) -> None:
        quota = quota_of(own[0].limits, self._device)
        used = shelf + used_by(own)
        remainder = max(0, min(quota - used, free))
        working = [session for session in own if session.session in busy] or own
        for session in own:
            growth = remainder // len(working) if session in working else min(remainder, IDLE_GROWTH_BYTES)
            allowance = Allowance(
                limit_bytes=session.own_bytes + growth,
                quota_bytes=quota,
                others_bytes=max(0, used - session.own_bytes),
                capacity_bytes=self._device.capacity_bytes,
                holders=holders,
            )
            self._notify(session, allowance)
