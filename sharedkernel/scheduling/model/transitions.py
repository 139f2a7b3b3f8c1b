"""The session's state machine, as data.

Two kinds of transitions: those by a session's own events (:data:`TRANSITIONS`; an event in a state not listed there is
a bug of the caller's and changes nothing), and those by the scheduler's decisions on any event (:data:`DECISIONS`). A
want leaves a session `waiting`; the scheduler decides in the same call whether it is admitted, refused, or stays in the
memory queue.
"""

from __future__ import annotations

from sharedkernel.scheduling.model.events import (
    CellClosed,
    CellInterrupted,
    CellOpened,
    DeviceWanted,
    DeviceWantWithdrawn,
    GrantMeasured,
    GrantReleased,
    HolderIdle,
    MemoryMeasured,
    NotRestored,
    OffloadDeclined,
    Offloaded,
    OffloadRequested,
    ProcessStopped,
    Restored,
    SessionDetached,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    UsedWithoutGrant,
    WorkForeseen,
)
from sharedkernel.scheduling.model.types import SessionState

_IDLE, _WAITING, _READY = SessionState.IDLE, SessionState.WAITING, SessionState.READY
_QUEUED, _RUNNING, _PREEMPTING = SessionState.QUEUED, SessionState.RUNNING, SessionState.PREEMPTING
_OFFLOADED, _RESTORING = SessionState.OFFLOADED, SessionState.RESTORING
_DEAD = SessionState.DEAD
_RESIDENT = (_IDLE, _READY, _WAITING, _QUEUED, _RUNNING, _PREEMPTING)
_LIVE = (*_RESIDENT, _OFFLOADED, _RESTORING)

#: (state, event) → state in which the event itself leaves the session, before decisions
TRANSITIONS: dict[tuple[SessionState, type[SessionEvent]], SessionState] = {
    (_DEAD, SessionStarted): _IDLE,
    (_IDLE, CellOpened): _READY,
    (_OFFLOADED, CellOpened): _RESTORING,
    (_READY, DeviceWanted): _WAITING,
    # A withdrawal may cross with a refusal or a grant on its way: there is nothing left to withdraw.
    (_READY, DeviceWantWithdrawn): _READY,
    (_WAITING, DeviceWantWithdrawn): _READY,
    (_QUEUED, DeviceWantWithdrawn): _READY,
    (_RUNNING, DeviceWantWithdrawn): _RUNNING,
    (_PREEMPTING, DeviceWantWithdrawn): _PREEMPTING,
    (_RUNNING, GrantReleased): _READY,
    (_PREEMPTING, GrantReleased): _READY,
    (_RUNNING, HolderIdle): _RUNNING,
    (_PREEMPTING, HolderIdle): _PREEMPTING,
    # It cannot ask for itself.
    (_RUNNING, ProcessStopped): _WAITING,
    (_PREEMPTING, ProcessStopped): _WAITING,
    (_READY, CellClosed): _IDLE,
    (_WAITING, CellClosed): _IDLE,
    (_QUEUED, CellClosed): _IDLE,
    # What is being restored is all back, or nothing of it.
    (_RESTORING, CellClosed): _OFFLOADED,
    (_RESTORING, Restored): _READY,
    (_RESTORING, NotRestored): _RESTORING,
    (_RESTORING, CellInterrupted): _RESTORING,
    (_IDLE, OffloadRequested): _IDLE,
    (_OFFLOADED, OffloadRequested): _OFFLOADED,
    (_IDLE, Offloaded): _OFFLOADED,
    (_OFFLOADED, Offloaded): _OFFLOADED,
    # It was offloaded in the middle of its cell, while it waited in the memory queue.
    (_WAITING, Offloaded): _RESTORING,
    # The answer may cross with a cell that opens.
    **{(state, OffloadDeclined): state for state in _RESIDENT},
    **{(state, MemoryMeasured): state for state in _LIVE},
    **{(state, WorkForeseen): state for state in _LIVE},
    **{(state, GrantMeasured): state for state in _LIVE},
    **{(state, UsedWithoutGrant): state for state in _LIVE},
    **{(state, SessionDetached): state for state in _LIVE},
    **{(state, SessionEnded): _DEAD for state in _LIVE},
}

#: what the scheduler decides → (from, to)
DECISIONS: dict[str, tuple[SessionState, SessionState]] = {
    "admit": (_WAITING, _QUEUED),
    "refuse": (_WAITING, _READY),
    "restore": (_RESTORING, _RESTORING),
    "refuse to restore": (_RESTORING, _RESTORING),
    "grant": (_QUEUED, _RUNNING),
    "revoke": (_RUNNING, _PREEMPTING),
    "send back": (_QUEUED, _WAITING),
}
