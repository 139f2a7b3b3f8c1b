"""A user's quota on this device, and how much of it the user's sessions have: one place for all who ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.protocol import Device, Limits
from sharedkernel.quota_check import CountedMemory, QuotaUse, count

#: memory of the machine that a session's processes may hold besides its tensors before it counts on the host device:
#: interpreters and libraries, and free pieces of the heap
HOST_CONTEXT_BYTES = 512 << 20


def by_user(sessions: Iterable[SessionHandle]) -> dict[str, list[SessionHandle]]:
    """Return *sessions* by their users."""
    found: dict[str, list[SessionHandle]] = {}
    for process in sessions:
        found.setdefault(process.user or "", []).append(process)
    return found


def quota_of(limits: Limits | None, device: Device) -> int:
    """Return a user's quota in bytes: what was set, or all that *device* can give.

    Parameters
    ----------
    limits
        The user's; None: not known yet.
    device
        The device that is shared.
    """
    return device.usable_bytes if limits is None or limits.quota_bytes is None else limits.quota_bytes


def most_of(limits: Limits | None, device: Device) -> int:
    """Return the most bytes that a user can have: their quota, but no more than *device* can give."""
    return min(quota_of(limits, device), device.usable_bytes)


def hard_limit(limits: Limits | None, device: Device) -> int | None:
    """Return the bytes of the machine at which the system itself ends a session on *device*; None: there is no limit.

    It is above the bound at which the executor warns, so that its user is told first.
    """
    return most_of(limits, device) + 2 * HOST_CONTEXT_BYTES if device.kind == "host" else None


def quota_use(own: Collection[SessionHandle], device: Device, *, shelf: int = 0) -> QuotaUse:
    """Return the quota of one user on *device*, and what they have of it.

    Parameters
    ----------
    own
        All sessions of the user; none: of a user whose quota is not known.
    device
        The device that is shared.
    shelf
        Bytes that the user's shelf is charged with.
    """
    limits = next((process.limits for process in own), None)
    return QuotaUse(quota=quota_of(limits, device), sessions=used_by(own), shelf=shelf)


def used_by(own: Collection[SessionHandle], figures: Sequence[CountedMemory] | None = None) -> int:
    """Return the bytes that all sessions of one user count, framework memory apart.

    Lingering ones do not: they are offloaded, or ended, for whoever needs their memory. What is live in a session only
    its own page says, so several could claim more than their user can have. Beyond that only counts what was measured.

    Parameters
    ----------
    own
        All sessions of the user.
    figures
        What each of them counts, as it was looked at already; None: as it is now.
    """
    if figures is None:
        figures = [process.counted for process in own]
    staying = [
        (process, counted) for process, counted in zip(own, figures, strict=True) if process.lingers_until is None
    ]
    measured = sum(process.memory.persistent for process, _ in staying)
    most = max((process.most_bytes for process, _ in staying), default=0)
    return min(count(counted for _, counted in staying), max(measured, most))


def kept_beside(own: Iterable[SessionHandle]) -> int:
    """Return the bytes of the device that the sessions *own* hold and that do not count: framework, and lingering."""
    return sum(
        process.memory.framework + (process.memory.persistent if process.lingers_until is not None else 0)
        for process in own
    )


def held_by(own: Collection[SessionHandle]) -> int:
    """Return the bytes that all sessions of one user hold of the device: what counts, and what does not."""
    return used_by(own) + kept_beside(own)


def most_of_user(own: Collection[SessionHandle]) -> int:
    """Return the most bytes that the user of the sessions *own* can have; 0 without any."""
    return max((process.most_bytes for process in own), default=0)
