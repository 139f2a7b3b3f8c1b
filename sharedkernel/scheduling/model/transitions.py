"""The session's state machine, as data.

Two kinds of transitions: those by a session's own events (:data:`TRANSITIONS`; an event in a state not listed there is
a bug of the caller's and changes nothing), and those by the scheduler's decisions on any event (:data:`DECISIONS`). A
want leaves a session `waiting`; the scheduler decides in the same call whether it is admitted, refused, or stays in the
memory queue.
"""

from __future__ import annotations

from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import SessionState

_IDLE, _WAITING, _READY = SessionState.IDLE, SessionState.WAITING, SessionState.READY
_QUEUED, _RUNNING, _PREEMPTING = SessionState.QUEUED, SessionState.RUNNING, SessionState.PREEMPTING
_OFFLOADED, _RESTORING = SessionState.OFFLOADED, SessionState.RESTORING
_DEAD = SessionState.DEAD
_WITHOUT_GRANT, _HOLDING = (_READY, _WAITING, _QUEUED), (_RUNNING, _PREEMPTING)
_RESIDENT = (_IDLE, *_WITHOUT_GRANT, *_HOLDING)
_LIVE = (*_RESIDENT, _OFFLOADED, _RESTORING)

#: (state, event) → state in which the event itself leaves the session, before decisions
TRANSITIONS: dict[tuple[SessionState, type[events.SessionEvent]], SessionState] = {
    (_DEAD, events.SessionStarted): _IDLE,
    (_IDLE, events.CellOpened): _READY,
    (_OFFLOADED, events.CellOpened): _RESTORING,
    (_READY, events.DeviceWanted): _WAITING,
    # A withdrawal may cross with a refusal or a grant on its way: there is nothing left to withdraw.
    **{(state, events.DeviceWantWithdrawn): _READY for state in _WITHOUT_GRANT},
    **{(state, events.DeviceWantWithdrawn): state for state in _HOLDING},
    **{(state, events.GrantReleased): _READY for state in _HOLDING},
    **{(state, events.HolderIdle): state for state in _HOLDING},
    # It cannot ask for itself.
    **{(state, events.ProcessStopped): _WAITING for state in _HOLDING},
    **{(state, events.CellClosed): _IDLE for state in _WITHOUT_GRANT},
    # What is being restored is all back, or nothing of it.
    (_RESTORING, events.CellClosed): _OFFLOADED,
    (_RESTORING, events.Restored): _READY,
    (_RESTORING, events.NotRestored): _RESTORING,
    (_RESTORING, events.CellInterrupted): _RESTORING,
    (_IDLE, events.OffloadRequested): _IDLE,
    (_OFFLOADED, events.OffloadRequested): _OFFLOADED,
    (_IDLE, events.Offloaded): _OFFLOADED,
    (_OFFLOADED, events.Offloaded): _OFFLOADED,
    # It was offloaded in the middle of its cell, while it waited in the memory queue.
    (_WAITING, events.Offloaded): _RESTORING,
    # The answer may cross with a cell that opens.
    **{(state, events.OffloadDeclined): state for state in _RESIDENT},
    **{(state, events.MemoryMeasured): state for state in _LIVE},
    **{(state, events.WorkForeseen): state for state in _LIVE},
    **{(state, events.GrantMeasured): state for state in _LIVE},
    **{(state, events.UsedWithoutGrant): state for state in _LIVE},
    **{(state, events.SessionDetached): state for state in _LIVE},
    **{(state, events.SessionEnded): _DEAD for state in _LIVE},
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
