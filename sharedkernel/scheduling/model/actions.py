"""What the scheduler decides: the caller carries these out, in the order given.

Actions about lanes come before the grants that use them. A refusal is an action too: it is policy, not a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sharedkernel.scheduling.model.types import LaneId, SessionId

#: why a wanted grant will never come as things are
RefusalReason = Literal["quota", "no_lane_fits", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Base of all actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Action):
    """Let the session use the device in its lane until it releases the grant."""

    session: SessionId
    #: may be another lane than at its last grant
    lane: LaneId
    #: lanes that run now, this one included
    parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke(Action):
    """Ask the session to release its grant at its next iteration boundary."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceYield(Action):
    """Demand the revoked grant by a signal: the session reached no boundary in time."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Summon(Action):
    """Call a session in whose cell plain Python runs to its gate, by a signal: it is to move its memory out."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(Action):
    """Ask a session that is idle, or waits in its cell, to move its device memory away.

    It stays charged until the session says that it is free.
    """

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Action):
    """Let the session bring back what it moved away: there is room, and it is charged from now on."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Action):
    """Tell the session that what it wants cannot be had as things are; its cell goes on with an error."""

    session: SessionId
    reason: RefusalReason
    #: one sentence for its user, with figures
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLane(Action):
    """Set memory aside for a new lane."""

    lane: LaneId
    #: bytes
    size: int
    #: trust domain of its sessions
    domain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeLane(Action):
    """Change the size of a lane in which nothing is live."""

    lane: LaneId
    #: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveLane(Action):
    """Give a lane's memory back; nothing in it is live."""

    lane: LaneId
