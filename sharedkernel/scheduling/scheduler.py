"""The scheduler of one device: events in, actions out.

One door
    :meth:`Scheduler.handle` is told what happened and returns what to do. Nothing else changes the scheduler. It never
    looks at a clock: `now` comes with each event and never goes back. :meth:`Scheduler.next_deadline` says when to call
    again with a `Tick` if nothing else happens. The same log of `(now, event)` leads to the same actions, whoever
    drives.

Facts and decisions
    Sessions report facts; the scheduler decides. Nothing is freed because it was asked back, only when its holder says
    that it is free: a session whose grant was revoked is `preempting`, with lane and memory still charged. Events whose
    session is in a state that does not allow them raise :class:`~sharedkernel.errors.InvalidTransition` and change
    nothing. `transitions.py` has both tables.

Three questions, each with its module
    *May it have memory?* `admission.py`, with `lanes.py` for the layout and `ledger.py` for the sums. *Who is served
    next?* `turns.py`, in the order of `policies.py`. *How much was each served?* `service.py`. This module connects
    them: it takes in an event, then *settles*: lanes are set right, the line for memory is admitted as far as it fits,
    and turns are taken.

Interrupted iterations
    A grant that was released in the middle of an iteration leaves live bytes in its lane. The lane is that session's
    until the iteration has ended, or until those bytes are *parked*: kept apart, and charged beside all lanes. What is
    parked of a session it does not need its lane for. At its next boundary nothing is live, and the charge ends.

The safety condition
    Persistent and framework memory of all sessions + what is parked + all lanes + the reserve ≤ capacity, and each lane
    is at least as large as the largest need among its sessions: a session's measured ephemeral memory, less what is
    parked of it. Whatever runs, its iteration can then finish, so the device cannot deadlock. Decisions never break it.
    Facts can: a session may turn out to hold more than was foreseen. Then, after each event:

    - What is in use stays. A lane in which something runs, or in which an interrupted iteration is live, keeps its size
      until it is empty; only the session whose iteration it is may need more than that.
    - An interrupted iteration that is parked can end: its session keeps a lane for the rest of it, or, where memory was
      reclaimed from it, gets one when no other lane is left, even if the sum then exceeds the capacity.
    - Everything else gives way. While the sum exceeds the capacity other empty lanes shrink if they have unmeasured
      sessions, then sessions are sent back to the line, the latest to come first, until the sum fits or none is left.
      Nobody else is admitted meanwhile.

    So the condition holds, or every lane is in use or owed to an interrupted iteration: :meth:`Scheduler.validate`
    checks that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling import turns
from sharedkernel.scheduling.actions import Action, ForceYield, Grant, Refuse, Revoke
from sharedkernel.scheduling.admission import Admission
from sharedkernel.scheduling.events import (
    CellClosed,
    CellOpened,
    DeviceWanted,
    DeviceWantWithdrawn,
    Event,
    GrantReleased,
    MemoryMeasured,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    UserConfigured,
)
from sharedkernel.scheduling.invariants import check
from sharedkernel.scheduling.lanes import Lanes
from sharedkernel.scheduling.ledger import Ledger
from sharedkernel.scheduling.model import (
    ACTIVE_STATES,
    MemoryProfile,
    SchedulerConfig,
    Session,
    SessionId,
    SessionState,
    User,
    UserId,
)
from sharedkernel.scheduling.policies import POLICIES
from sharedkernel.scheduling.service import ServiceClock
from sharedkernel.scheduling.snapshot import Snapshot, take_snapshot
from sharedkernel.scheduling.transitions import DECISIONS, TRANSITIONS

#: weight of the newest value in decayed means
_DECAY = 0.2
#: longest time between two signals that demand the same grant, seconds, however often they went unheard
_LONGEST_FORCE_INTERVAL = 1.0
#: by how much shorter patience is with a session that had to be forced the last time
_STUBBORN = 0.1


class Scheduler:
    """Decides who uses one device, and how its memory is divided.

    Parameters
    ----------
    config
        How; see :class:`SchedulerConfig`.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.policy = POLICIES[config.policy](config)
        self.users: dict[UserId, User] = {}
        self.sessions: dict[SessionId, Session] = {}
        self.ledger = Ledger(config.capacity, config.reserve)
        self._actions: list[Action] = []
        self.lanes = Lanes(self.ledger, self._actions)
        self.clock = ServiceClock(config.quantum)
        self.admission = Admission(config, self.policy, self.ledger, self.lanes)
        #: all and only the sessions that are `queued`, `ready`
        self.queued: dict[SessionId, Session] = {}
        self.ready: dict[SessionId, Session] = {}
        self._cells = itertools.count(1)
        self._arrivals = itertools.count(1)
        #: when a holder's turn will be over
        self._turn_deadline: float | None = None
        self._indexes: dict[SessionState, dict[SessionId, Session]] = {
            SessionState.QUEUED: self.queued,
            SessionState.READY: self.ready,
            SessionState.WAITING: self.admission.waiting,
        }
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            UserConfigured: self._on_user_configured,
            SessionStarted: self._on_session_started,
            CellOpened: self._on_cell_opened,
            DeviceWanted: self._on_device_wanted,
            DeviceWantWithdrawn: self._on_device_want_withdrawn,
            GrantReleased: self._on_grant_released,
            MemoryMeasured: self._on_memory_measured,
            CellClosed: self._on_cell_closed,
            SessionEnded: self._on_session_ended,
        }

    # --- the door -----------------------------------

    def handle(self, event: Event, *, now: float) -> list[Action]:
        """Take note of *event* and return what to do about it, in order.

        Parameters
        ----------
        event
            What happened.
        now
            When, in seconds; not before the event handled last.

        Raises
        ------
        InvalidTransition
            When the session's state does not allow the event; nothing has changed then.
        ValueError
            When *now* goes back; nothing has changed then.
        """
        if now < self.clock.now:
            raise ValueError(f"time went back from {self.clock.now} to {now}.")
        if isinstance(event, SessionEvent):
            self._check(event)
        self.clock.accrue(now)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        self._settle()
        self._force()
        actions = self._actions[:]
        self._actions.clear()
        return actions

    def next_deadline(self) -> float | None:
        """Return when to handle a `Tick` if nothing else happens before; None when time alone changes nothing."""
        deadlines = [session.force_at for session in self.clock.holders.values() if session.force_at < math.inf]
        if self._turn_deadline is not None:
            deadlines.append(self._turn_deadline)
        reclaim = self.admission.next_deadline(self.clock.now)
        if reclaim is not None:
            deadlines.append(reclaim)
        return min(deadlines, default=None)

    def snapshot(self, now: float) -> Snapshot:
        """Return what people see of it at *now*, seconds; changes nothing."""
        return take_snapshot(self, now)

    def story(self, session: SessionId) -> list[str]:
        """Return what happened to *session* lately, oldest first; empty for one that is not known."""
        known = self.sessions.get(session)
        return [] if known is None else [f"{when:.6f} {what}: {state}" for when, what, state in known.story]

    def validate(self) -> None:
        """Check every invariant.

        Raises
        ------
        AssertionError
            With a sentence saying which one does not hold.
        """
        check(self)

    # --- events -----------------------------------

    def _check(self, event: SessionEvent) -> None:
        session = self.sessions.get(event.session)
        state = SessionState.DEAD if session is None else session.state
        if (state, type(event)) not in TRANSITIONS:
            raise InvalidTransition(event.session, state, type(event).__name__, self.story(event.session))

    def _user(self, user: UserId) -> User:
        return self.users.setdefault(user, User(id=user))

    def _on_user_configured(self, event: UserConfigured) -> None:
        user = self._user(event.user)
        user.share, user.quota = event.share, event.quota
        for session in user.sessions.values():
            # An interrupted iteration is let finish: its lane could not be given to anybody else.
            if session.state is SessionState.QUEUED and not session.live:
                refusal = self.admission.refusal(session)
                if refusal is not None:
                    self._send_back(session)
                    self._refuse(session, refusal)

    def _on_session_started(self, event: SessionStarted) -> None:
        user = self._user(event.user)
        session = Session(id=event.session, user=user, domain=event.domain, attained=event.attained)
        session.virtual = event.attained
        user.attained += event.attained
        user.virtual += event.attained / user.share
        user.sessions[session.id] = self.sessions[session.id] = session
        self.ledger.set_memory(session, MemoryProfile(framework=event.framework))
        self._note(session, event)

    def _on_cell_opened(self, event: CellOpened) -> None:
        session = self.sessions[event.session]
        session.cell = next(self._cells)
        session.started = False
        self._move(session, event)

    def _on_device_wanted(self, event: DeviceWanted) -> None:
        session = self.sessions[event.session]
        if event.memory is not None:
            self._measure(session, event.memory)
        self._move(session, event)
        refusal = self.admission.refusal(session)
        if refusal is not None:
            self._refuse(session, refusal)
        elif session.lane is not None:
            self._decide(session, "admit")
        else:
            self._enter_line(session)

    def _on_device_want_withdrawn(self, event: DeviceWantWithdrawn) -> None:
        self._move(self.sessions[event.session], event)

    def _on_grant_released(self, event: GrantReleased) -> None:
        session = self.sessions[event.session]
        if event.iterations:
            mean = session.unreported / event.iterations
            session.iteration_seconds = _decayed(session.iteration_seconds, mean)
            session.iterations += event.iterations
            session.unreported = 0.0
        if event.utilisation is not None and session.alone:
            session.utilisation = _decayed(session.utilisation, event.utilisation)
        if session.state is SessionState.PREEMPTING:
            session.stubborn = session.forced
        self._end_grant(session)
        self._set_live(session, event.live_bytes if event.at == "yield" else 0)
        self._measure(session, event.memory)
        self._move(session, event)

    def _on_memory_measured(self, event: MemoryMeasured) -> None:
        session = self.sessions[event.session]
        self._measure(session, event.memory)
        self._note(session, event)

    def _on_cell_closed(self, event: CellClosed) -> None:
        session = self.sessions[event.session]
        self._set_live(session, 0)
        self.lanes.leave(session)
        self._measure(session, event.memory)
        self._move(session, event)

    def _on_session_ended(self, event: SessionEnded) -> None:
        session = self.sessions[event.session]
        if session.id in self.clock.holders:
            self._end_grant(session)
        self._set_live(session, 0)
        self.lanes.leave(session)
        self._move(session, event)
        self.ledger.set_memory(session, MemoryProfile(ephemeral=0))
        del self.sessions[session.id], session.user.sessions[session.id]

    # --- settling -----------------------------------

    def _settle(self) -> None:
        """Bring lanes, the line for memory and turns in order, after any event."""
        for session in self.lanes.settle():
            self._send_back(session)
        while self.admission.waiting:
            result = self.admission.admit(self.clock.now)
            for refusal in result.refused:
                self._refuse(self.sessions[refusal.session], refusal)
            for session in result.admitted:
                self._decide(session, "admit")
            reclaim = self.admission.reclaim(self.clock.now)
            if not reclaim.lanes:
                break
            for lane in reclaim.lanes:
                for session in self.lanes.clear(lane):
                    self._send_back(session)
        self._take_turns()
        # Asked last: the lane that is needed may have been granted only now, for its interrupted iteration to end.
        reclaim = self.admission.reclaim(self.clock.now)
        for session in reclaim.asked:
            self._revoke(session)
        for session in reclaim.demanded:
            self._end_turn(session)

    def _take_turns(self) -> None:
        keepers: list[Session] = []
        if self.policy.reserves:
            keepers = [session for session in self.ready.values() if self.policy.keeps_place(session)]
        chosen = turns.choose(
            config=self.config,
            policy=self.policy,
            lanes=self.lanes,
            queued=self.queued.values(),
            keepers=keepers,
            holders=self.clock.holders.values(),
            now=self.clock.now,
        )
        self._turn_deadline = chosen.deadline
        for session in chosen.revocations:
            self._end_turn(session)
        for session in chosen.grants:
            self._grant(session)

    def _force(self) -> None:
        """Demand by signal what was revoked and not released in time."""
        now = self.clock.now
        for session in self.clock.holders.values():
            if session.force_at <= now:
                session.forced = True
                session.force_at = now + session.force_interval
                session.force_interval = min(2 * session.force_interval, _LONGEST_FORCE_INTERVAL)
                self._actions.append(ForceYield(session=session.id))

    # --- decisions -----------------------------------

    def _grant(self, session: Session) -> None:
        lane = session.lane
        assert lane is not None
        if lane.occupant is not session:
            for other in self.lanes.park(lane):
                self._send_back(other)
        lane.holder = session
        self.clock.begin(session)
        self._decide(session, "grant")
        self._actions.append(Grant(session=session.id, lane=lane.id, parallel=len(self.clock.holders)))

    def _revoke(self, session: Session) -> None:
        session.forced = False
        self._decide(session, "revoke")
        self._actions.append(Revoke(session=session.id))

    def _end_turn(self, session: Session) -> None:
        """Take the device from *session*, by a signal if it does not give it back in time."""
        if session.state is SessionState.RUNNING:
            self._revoke(session)
        patience = self.config.preempt_patience * (_STUBBORN if session.stubborn else 1.0)
        session.force_at = self.clock.now + patience
        session.force_interval = patience

    def _end_grant(self, session: Session) -> None:
        self.clock.end(session)
        session.force_at = math.inf
        if session.lane is not None:
            session.lane.holder = None

    def _refuse(self, session: Session, refusal: Refuse) -> None:
        self._decide(session, "refuse")
        self._actions.append(refusal)

    def _send_back(self, session: Session) -> None:
        """Let *session*, which had to leave its lane, come for memory anew."""
        self.lanes.leave(session)
        if session.state is SessionState.QUEUED:
            self._decide(session, "send back")
            self._enter_line(session)

    def _enter_line(self, session: Session) -> None:
        session.arrival = next(self._arrivals)
        session.waiting_since = self.clock.now
        session.overtaken_at = None

    # --- changing a session -----------------------------------

    def _measure(self, session: Session, memory: MemoryProfile) -> None:
        self.ledger.set_memory(session, memory)
        if not self.lanes.remeasured(session):
            self._send_back(session)

    def _set_live(self, session: Session, live: int) -> None:
        """Note that *live* bytes of an interrupted iteration of *session* are in its lane, or parked from it."""
        session.live = live
        self.ledger.set_parked(session, min(session.parked, live))
        lane = session.lane
        if lane is not None:
            if session.unparked:
                lane.occupant = session
            elif lane.occupant is session:
                lane.occupant = None

    def _decide(self, session: Session, decision: str) -> None:
        before, after = DECISIONS[decision]
        assert session.state is before, f"cannot {decision} session {session.id} while it is {session.state}"
        self._enter(session, after, decision)

    def _move(self, session: Session, event: SessionEvent) -> None:
        self._enter(session, TRANSITIONS[session.state, type(event)], type(event).__name__)

    def _note(self, session: Session, event: SessionEvent) -> None:
        session.story.append((self.clock.now, type(event).__name__, session.state))

    def _enter(self, session: Session, state: SessionState, reason: str) -> None:
        before, session.state = session.state, state
        session.story.append((self.clock.now, reason, state))
        if before is state:
            return
        if (index := self._indexes.get(before)) is not None:
            del index[session.id]
        if (index := self._indexes.get(state)) is not None:
            index[session.id] = session
        if (before in ACTIVE_STATES) != (state in ACTIVE_STATES):
            if state in ACTIVE_STATES:
                self.clock.activate(session)
            else:
                self.clock.deactivate(session)


def _decayed(mean: float | None, value: float) -> float:
    return value if mean is None else (1 - _DECAY) * mean + _DECAY * value
