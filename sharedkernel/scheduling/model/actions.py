"""The scheduler's actions: the caller carries them out, in the order given.

Actions about lanes come before the grants that use them. A refusal is an action too: it is policy, not a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedkernel.quota_check import Shortage
from sharedkernel.scheduling.model.types import LaneId, SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Base of all actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAction(Action):
    """Base of the actions that concern one session."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(SessionAction):
    """Let the session use the device in its lane until it releases the grant."""

    #: may be another lane than at its last grant
    lane: LaneId
    #: lanes that run now, this one included
    parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke(SessionAction):
    """Ask the session to release its grant at its next iteration boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceYield(SessionAction):
    """Demand the revoked grant by a signal: the session did not reach a boundary in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProcess(SessionAction):
    """Stop the session's process until its next grant: it does not react to the signals that demand its grant.

    Its grant stays charged until :class:`~sharedkernel.scheduling.model.events.ProcessStopped`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Summon(SessionAction):
    """Call a session whose cell runs plain Python to its gate, by a signal: it must offload its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(SessionAction):
    """Ask a session that is idle, or waits in its cell, to offload its device memory.

    It stays charged until the session reports that it is free.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(SessionAction):
    """Have the session restore its offloaded memory: there is room, and it is charged from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(SessionAction):
    """Refuse the session what it wants; its cell goes on with an error."""

    shortage: Shortage


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLane(Action):
    """Reserve memory for a new lane."""

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
    """Release a lane's memory; nothing in it is live."""

    lane: LaneId
