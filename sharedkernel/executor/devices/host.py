"""The host device: the processor, with a configured amount of the machine's memory as the device's memory.

Everything is as on a GPU but for two things. Bytes of a lane are not the same bytes for its sessions, since each
process has its own heap: lanes only count. And what a session may use is enforced by a limit on its process's private
memory (`RLIMIT_DATA`, set from outside), past which its allocations fail cleanly.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Iterable

import psutil

from sharedkernel.errors import ConfigError
from sharedkernel.executor.sessions import SessionProcess
from sharedkernel.protocol import Allowance, Device
from sharedkernel.units import format_bytes

#: private memory allowed besides what the figures say: stacks of new threads, fragments of the heap
SLACK_BYTES = 64 << 20
#: what an idle session may grow by while another of its user's sessions works
_IDLE_GROWTH_BYTES = 64 << 20
#: allowances that differ by less are not worth telling
_WORTH_TELLING_BYTES = 1 << 20
#: part of the machine's memory that is the device's when nothing else is said
_DEFAULT_PART = 0.5
#: lanes on this device count bytes and share none, so all sessions may share them
TRUST_DOMAIN = "host"


def describe(capacity: int | None, reserve: int) -> Device:
    """Return the device to serve.

    Parameters
    ----------
    capacity, reserve
        Bytes; without a capacity, half of the machine's memory.

    Raises
    ------
    ConfigError
        When the capacity is more than the machine has, or all of it is reserved.
    """
    total = psutil.virtual_memory().total
    if capacity is None:
        capacity = int(total * _DEFAULT_PART)
    if capacity > total:
        raise ConfigError(
            f"a capacity of {format_bytes(capacity)} is more than this machine's {format_bytes(total)}; "
            "name less with --capacity."
        )
    if reserve >= capacity:
        raise ConfigError(
            f"a reserve of {format_bytes(reserve)} leaves nothing of the capacity of {format_bytes(capacity)}; "
            "name less with --reserve."
        )
    name = f"host ({os.cpu_count()} x {platform.machine()})"
    return Device(name=name, kind="host", capacity_bytes=capacity, reserve_bytes=reserve)


class HostLimits:
    """Leases memory to session processes, and sets their limits.

    A user's quota is leased to those of their sessions that have a cell open, in equal parts beyond what each holds
    already; the others may only keep what they have. Nobody is leased what the device has not got.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def update(self, sessions: Iterable[SessionProcess], busy: set[str]) -> None:
        """Set the limits of all *sessions*, of which those named in *busy* have a cell open."""
        all_sessions = list(sessions)
        usable = self._device.capacity_bytes - self._device.reserve_bytes
        held = sum(session.memory.persistent + session.memory.framework for session in all_sessions)
        by_user: dict[str, list[SessionProcess]] = {}
        for session in all_sessions:
            by_user.setdefault(session.user or "", []).append(session)
        for own in by_user.values():
            self._update_user(own, busy, free=max(0, usable - held))

    def _update_user(self, own: list[SessionProcess], busy: set[str], *, free: int) -> None:
        limits = own[0].limits
        usable = self._device.capacity_bytes - self._device.reserve_bytes
        quota = usable if limits is None or limits.quota_bytes is None else limits.quota_bytes
        used = sum(session.memory.persistent for session in own)
        remainder = max(0, min(quota - used, free))
        working = [session for session in own if session.session in busy] or own
        for session in own:
            growth = remainder // len(working) if session in working else min(remainder, _IDLE_GROWTH_BYTES)
            allowance = Allowance(
                limit_bytes=session.memory.persistent + growth,
                quota_bytes=quota,
                others_bytes=used - session.memory.persistent,
                capacity_bytes=self._device.capacity_bytes,
            )
            self._tell(session, allowance)

    @staticmethod
    def _tell(session: SessionProcess, allowance: Allowance) -> None:
        limit = session.data_bytes + allowance.limit_bytes + SLACK_BYTES
        told = session.told_allowance
        if (
            told is not None
            and told.quota_bytes == allowance.quota_bytes
            and abs(limit - session.data_limit) < _WORTH_TELLING_BYTES
        ):
            return
        session.told_allowance = allowance
        session.data_limit = limit
        session.send(allowance)
        with contextlib.suppress(ProcessLookupError):
            # Only the soft limit: an executor that is not root could not raise a hard one again.
            resource.prlimit(session.pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
