"""Ids, a session's states, and its memory profile: the words that events, actions and records share.

Bytes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NewType

SessionId = NewType("SessionId", str)
UserId = NewType("UserId", str)
LaneId = NewType("LaneId", int)


class SessionState(StrEnum):
    """The state of a session, as the scheduler sees it."""

    #: no cell is open
    IDLE = "idle"
    #: wants a grant, but has no lane: its memory is not admitted
    WAITING = "waiting"
    #: a cell is open; holds no grant and wants none (plain Python runs)
    READY = "ready"
    #: wants a grant and has a lane
    QUEUED = "queued"
    #: holds a grant
    RUNNING = "running"
    #: holds a grant that was revoked; lane and memory stay charged until it is released
    PREEMPTING = "preempting"
    #: no cell is open; its device memory is offloaded as far as possible
    OFFLOADED = "offloaded"
    #: a cell is open and waits for its memory, which waits for room or is being restored
    RESTORING = "restoring"
    #: not known to the scheduler (not started yet, or ended and forgotten)
    DEAD = "dead"


#: states in which a session competes for lanes
ACTIVE_STATES = frozenset({SessionState.QUEUED, SessionState.RUNNING, SessionState.PREEMPTING})
#: states in which a session may be in the memory queue
MEMORY_QUEUE_STATES = frozenset({SessionState.WAITING, SessionState.RESTORING})
#: states in which a cell is open
OPEN_STATES = frozenset(
    {SessionState.READY, SessionState.WAITING, SessionState.QUEUED, SessionState.RESTORING, *ACTIVE_STATES}
)
#: states in which a session holds a grant
HOLDING_STATES = frozenset({SessionState.RUNNING, SessionState.PREEMPTING})

#: origin of an estimate of a cell's remaining service, see `policies/predictions.py`
PredictionOrigin = Literal["declared", "earlier", "residual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """A session's device memory as its meter sees it, in bytes."""

    #: stays between iterations
    persistent: int = 0
    #: largest need of an iteration beyond what is persistent; None: not measured yet
    ephemeral: int | None = None
    #: held while the process lives, whatever the notebook does
    framework: int = 0
    #: largest need of an iteration that the open section was measured to have; `ephemeral` beyond it is a prediction
    needed: int = 0
    #: whether `ephemeral` is what other code needed than what runs: a session does not wait for that
    is_guess: bool = False

    def __post_init__(self) -> None:
        if min(self.persistent, self.framework, self.needed, self.ephemeral or 0) < 0:
            raise ValueError(f"an amount of memory is negative in {self}.")

    @property
    def resident(self) -> int:
        """Bytes held between iterations too: persistent and framework memory."""
        return self.persistent + self.framework
