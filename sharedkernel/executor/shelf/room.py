"""How much a user's shelf may take: what their quota leaves, and what everybody's sessions leave of the device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sharedkernel.executor.processes.process import SessionProcess
from sharedkernel.protocol import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a user's shelf has to fit into; bytes."""

    quota: int
    #: used by the user's sessions
    sessions: int
    #: left by everybody's sessions; all shelves have to fit into it
    device: int


def room_for(user: str, sessions: Collection[SessionProcess], device: Device) -> Room:
    """Return what the shelf of *user* has to fit into beside all *sessions* on *device*."""
    own = [process for process in sessions if process.user == user]
    usable = device.capacity_bytes - device.reserve_bytes
    quotas = [process.limits.quota_bytes for process in own if process.limits is not None]
    resident = sum(_used_bytes(process) + process.memory.framework for process in sessions)
    # Shelves leave room for the largest iteration, or there would be sessions that could never run again.
    iteration = max((process.memory.ephemeral or 0 for process in sessions), default=0)
    return Room(
        quota=usable if not quotas or quotas[0] is None else quotas[0],
        sessions=sum(map(_used_bytes, own)),
        device=usable - resident - iteration,
    )


def _used_bytes(process: SessionProcess) -> int:
    """Return what a session has and may keep: as it was leased, or as its own page says, which is newer."""
    return max(process.own_bytes, process.persistent_bytes + process.live_bytes)
