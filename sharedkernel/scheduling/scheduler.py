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

Four questions, each with its modules
    *May it have memory?* `admission.py`, with `claims.py` for what each in line waits for, `lanes.py` for the layout
    and `ledger.py` for the sums. *Who makes room for it?* `reclaim.py` takes lanes, `offloading.py` moves idle memory
    away. *Who is served next?* `turns.py`, in the order of `policies.py`. *How much was each served?* `service.py`.
    This module connects them: it takes in an event, then *settles*: lanes are set right, the line for memory is
    admitted as far as it fits, turns are taken, and idle sessions are asked to move away for who is still in line.

Interrupted iterations
    A grant that was released in the middle of an iteration leaves live bytes in its lane. The lane is that session's
    until the iteration has ended, or until those bytes are *parked*: kept apart, and charged beside all lanes. What is
    parked of a session it does not need its lane for. At its next boundary nothing is live, and the charge ends.

Offloading and restoring
    An idle session that is asked to move away stays charged until it says that it has, or that it will not; a cell that
    opens before that is simply ready. A cell of an offloaded session is `restoring`: in line until there is room, then
    on its way back, and charged from the moment that it may come. If that is cut short, the session is offloaded as
    before. Restoring never takes the room that open cells need for their lanes: notebooks brought side by side would
    otherwise wait for each other's memory, neither able to run.

Growth
    An iteration, or a cell, that comes to need more than it has gives its grant back and waits in line, with its lane.
    What it is given is parked beside the lane, and so ends at its next boundary, when the truth is measured. It goes
    before others, the oldest first, but not beyond the capacity: after `growth_patience` it is refused, and at once
    where nothing is going on that could help and nobody can give way. So those that grow cannot block each other.

    Sessions may come to wait, in the middle of their cells, for what each other keeps. Then the latest of them *gives
    way*: it is moved away whole, and restored when there is room for what it had and what it lacked. Where it cannot be
    moved only the end of a cell can help: one that grows is refused at once, any other after `growth_patience`.

The safety condition
    Persistent and framework memory of all sessions + what is on shelves + what is parked + all lanes + the reserve ≤
    capacity, and each lane is at least as large as the largest need among its sessions: a session's measured ephemeral
    memory, less what is parked of it. Whatever runs, its iteration can then finish, so the device cannot deadlock.
    Decisions never break it. Facts can: a session may turn out to hold more than was foreseen. Then, after each event:

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

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling import interference, turns
from sharedkernel.scheduling.actions import Action, ForceYield, Grant, Offload, Refuse, Restore, Revoke
from sharedkernel.scheduling.admission import Admission
from sharedkernel.scheduling.claims import Claims
from sharedkernel.scheduling.events import (
    CellClosed,
    CellOpened,
    DeviceWanted,
    DeviceWantWithdrawn,
    Event,
    GrantReleased,
    HistoryRecalled,
    MemoryMeasured,
    OffloadDeclined,
    Offloaded,
    OffloadRequested,
    PolicyConfigured,
    Restored,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    ShelfMeasured,
    UserConfigured,
    WorkForeseen,
)
from sharedkernel.scheduling.invariants import check
from sharedkernel.scheduling.lanes import Lanes
from sharedkernel.scheduling.ledger import Ledger
from sharedkernel.scheduling.model import (
    ACTIVE_STATES,
    LINE_STATES,
    OPEN_STATES,
    MemoryProfile,
    SchedulerConfig,
    Session,
    SessionId,
    SessionState,
    User,
    UserId,
)
from sharedkernel.scheduling.offloading import Offloading
from sharedkernel.scheduling.order import ServiceOrder
from sharedkernel.scheduling.policies import POLICIES
from sharedkernel.scheduling.predictions import Predictions
from sharedkernel.scheduling.reclaim import Reclaim, Reclaimer
from sharedkernel.scheduling.service import ServiceClock
from sharedkernel.scheduling.snapshot import Snapshot, take_snapshot
from sharedkernel.scheduling.transitions import DECISIONS, TRANSITIONS

#: longest time between two signals that demand the same grant, seconds, however often they went unheard
_LONGEST_FORCE_INTERVAL = 1.0
#: seconds until a session that had no time to move away may be asked again
_ASK_AGAIN = 0.5
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
        self.users: dict[UserId, User] = {}
        self.sessions: dict[SessionId, Session] = {}
        self.ledger = Ledger(config.capacity, config.reserve)
        self._actions: list[Action] = []
        self.lanes = Lanes(self.ledger, self._actions)
        self.clock = ServiceClock(config.quantum)
        self.claims = Claims(self.ledger, self.lanes)
        self.predictions = Predictions(self.claims.open.values)
        self.policy = POLICIES[config.policy](config, self.predictions)
        self.offloading = Offloading(self.claims)
        self.admission = Admission(
            config, self.policy, self.ledger, self.lanes, self.claims, self.offloading, self.users
        )
        self.reclaimer = Reclaimer(self.admission)
        self.order = ServiceOrder(self.policy, self.lanes)
        #: all and only the sessions that are `queued`, `ready`
        self.queued: dict[SessionId, Session] = {}
        self.ready: dict[SessionId, Session] = {}
        self._cells = itertools.count(1)
        self._arrivals = itertools.count(1)
        #: when a holder's turn will be over
        self._turn_deadline: float | None = None
        self._indexes: dict[SessionState, dict[SessionId, Session]] = {
            SessionState.IDLE: self.offloading.idle,
            SessionState.QUEUED: self.queued,
            SessionState.READY: self.ready,
        }
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            UserConfigured: self._on_user_configured,
            PolicyConfigured: self._on_policy_configured,
            SessionStarted: self._on_session_started,
            CellOpened: self._on_cell_opened,
            DeviceWanted: self._on_device_wanted,
            DeviceWantWithdrawn: self._on_device_want_withdrawn,
            GrantReleased: self._on_grant_released,
            MemoryMeasured: self._on_memory_measured,
            CellClosed: self._on_cell_closed,
            OffloadRequested: self._on_offload_requested,
            Offloaded: self._on_offloaded,
            OffloadDeclined: self._on_offload_declined,
            Restored: self._on_restored,
            ShelfMeasured: self._on_shelf_measured,
            SessionEnded: self._on_session_ended,
            WorkForeseen: self._on_work_foreseen,
            HistoryRecalled: self._on_history_recalled,
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
        if self.admission.waiting:
            waited_for = (
                self.reclaimer.next_deadline(self.clock.now),
                self.admission.next_deadline(),
                self.offloading.ripe_at,
                self._deadlock_ends(),
            )
            deadlines += [deadline for deadline in waited_for if deadline is not None]
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
        user.share, user.quota, user.offload_after = event.share, event.quota, event.offload_after
        user.priority = event.priority
        self.order.user_changed(user)
        for session in user.sessions.values():
            # An interrupted iteration is let finish: its lane could not be given to anybody else.
            if session.state is SessionState.QUEUED and not session.live:
                refusal = self.admission.refusal(session)
                if refusal is not None:
                    self._send_back(session)
                    self._refuse(session, refusal)

    def _on_policy_configured(self, event: PolicyConfigured) -> None:
        self.config = dataclasses.replace(self.config, policy=event.policy, backfill=event.backfill)
        self.policy = POLICIES[event.policy](self.config, self.predictions)
        self.admission.config, self.admission.policy = self.config, self.policy
        self.reclaimer.policy = self.policy
        self.order.rebuild(self.policy, self.queued.values())

    def _on_session_started(self, event: SessionStarted) -> None:
        user = self._user(event.user)
        session = Session(
            id=event.session, user=user, domain=event.domain, attained=event.attained, idle_since=self.clock.now
        )
        session.virtual = session.attained_before = event.attained
        user.attained += event.attained
        user.virtual += event.attained / user.share
        self.order.user_changed(user)
        user.sessions[session.id] = self.sessions[session.id] = session
        self.ledger.set_memory(session, MemoryProfile(framework=event.framework))
        self.offloading.idle[session.id] = session
        self._note(session, event)

    def _on_cell_opened(self, event: CellOpened) -> None:
        session = self.sessions[event.session]
        session.cell = next(self._cells)
        session.started = False
        session.source, session.attained_before = event.source, session.attained
        session.declared, session.is_misjudged = None, False
        session.remaining = self.predictions.estimate(session).seconds
        self._move(session, event)
        if session.state is SessionState.RESTORING:
            self._enter_line(session)

    def _on_device_wanted(self, event: DeviceWanted) -> None:
        session = self.sessions[event.session]
        if event.memory is not None:
            self._measure(session, event.memory)
        if event.utilisation is not None:
            session.predicted_utilisation = event.utilisation
        if event.iteration_seconds is not None:
            session.predicted_iteration_seconds = event.iteration_seconds
        self._declare(session, event.remaining_iterations)
        session.remaining = self.predictions.estimate(session).seconds
        self._move(session, event)
        session.growth = event.growth
        refusal = self.admission.refusal(session)
        if refusal is not None:
            self._refuse(session, refusal)
        elif session.lane is None or session.growth:
            self._enter_line(session)
        else:
            self._decide(session, "admit")

    def _on_device_want_withdrawn(self, event: DeviceWantWithdrawn) -> None:
        self._move(self.sessions[event.session], event)

    def _on_grant_released(self, event: GrantReleased) -> None:
        session = self.sessions[event.session]
        interference.take_release(session, iterations=event.iterations, utilisation=event.utilisation)
        session.is_misjudged = session.is_misjudged or self.predictions.has_exceeded(session)
        self._declare(session, event.remaining_iterations)
        if session.state is SessionState.PREEMPTING:
            session.stubborn = session.forced
        self._end_grant(session)
        if event.at != "yield":
            session.rest = None
        need = session.need
        self._set_live(session, event.live_bytes if event.at == "yield" else 0)
        if session.grown:
            # Its iteration is still to need what it grew to. What was parked for that and not used is forgotten.
            self._measure(session, _at_least(event.memory, ephemeral=need + session.parked))
        else:
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
        session.is_returning = session.is_cut_short = session.declined = False
        session.lacked, session.rest = 0, None
        session.idle_since = self.clock.now
        self._measure(session, event.memory)
        self._move(session, event)
        if self.predictions.cell_closed(session) and self.policy.learns:
            self.order.rebuild(self.policy, self.queued.values())

    def _on_session_ended(self, event: SessionEnded) -> None:
        session = self.sessions[event.session]
        if session.id in self.clock.holders:
            self._end_grant(session)
        self._set_live(session, 0)
        self.lanes.leave(session)
        self._move(session, event)
        session.is_returning = False
        self.ledger.set_memory(session, MemoryProfile(ephemeral=0))
        del self.sessions[session.id], session.user.sessions[session.id]

    def _on_offload_requested(self, event: OffloadRequested) -> None:
        session = self.sessions[event.session]
        self._note(session, event)
        if session.state is SessionState.IDLE and not session.is_asked_to_offload:
            self._offload(session)

    def _on_offloaded(self, event: Offloaded) -> None:
        session = self.sessions[event.session]
        if session.state is SessionState.WAITING:
            session.is_cut_short, session.lacked = True, session.growth
            # What is live of its iteration counts as persistent from now on.
            session.rest = max(0, (session.memory.ephemeral or 0) - session.live)
            self._set_live(session, 0)
            self.lanes.leave(session)
        self._measure(session, event.memory)
        session.offloaded = event.offloaded
        session.is_asked_to_offload = False
        self._move(session, event)
        if session.is_cut_short:
            self._enter_line(session)

    def _on_offload_declined(self, event: OffloadDeclined) -> None:
        session = self.sessions[event.session]
        session.is_asked_to_offload = False
        # If its code runs by now that is why.
        is_for_now = event.for_now or session.state not in (SessionState.IDLE, SessionState.WAITING)
        session.declined = not is_for_now
        session.ask_again_at = self.clock.now + _ASK_AGAIN
        self._note(session, event)

    def _on_restored(self, event: Restored) -> None:
        session = self.sessions[event.session]
        session.is_returning = session.is_cut_short = False
        session.offloaded = 0
        self._measure(session, event.memory)
        # Like any growth: parked until its next boundary tells the truth.
        session.live = session.grown = session.lacked
        self.ledger.set_parked(session, session.lacked)
        session.lacked = 0
        self._move(session, event)

    def _on_work_foreseen(self, event: WorkForeseen) -> None:
        session = self.sessions[event.session]
        if event.source is not None:
            session.source = event.source
            interference.begin_source(session, event.source)
        session.is_misjudged = session.is_misjudged or self.predictions.has_exceeded(session)
        if event.iteration_seconds is not None:
            session.predicted_iteration_seconds = event.iteration_seconds
        if event.utilisation is not None:
            session.predicted_utilisation = event.utilisation
        self._declare(session, event.remaining_iterations)
        self._note(session, event)

    def _on_history_recalled(self, event: HistoryRecalled) -> None:
        self.predictions.recall(event.cells)

    def _on_shelf_measured(self, event: ShelfMeasured) -> None:
        self.ledger.set_shelf(self._user(event.user), event.bytes)

    # --- settling -----------------------------------

    def _settle(self) -> None:
        """Bring lanes, the line for memory and turns in order, after any event."""
        for session in self.lanes.settle():
            self._send_back(session)
        self._admit()
        self._take_turns()
        if self.admission.waiting:
            self._make_room()
        else:
            self.offloading.forget()

    def _make_room(self) -> None:
        """Take from others, at their boundaries or while they are idle, what those in line lack."""
        # Asked last: the lane that is needed may have been granted only now, for its interrupted iteration to end.
        reclaim = self.reclaimer.reclaim(self.clock.now)
        for session in reclaim.asked:
            self._revoke(session)
        for session in reclaim.demanded:
            self._end_turn(session)
        for session in self.offloading.choose(self.admission.line(), self.clock.now):
            self._offload(session)
        while self.is_stuck():
            self._unstick()
        ends = self._deadlock_ends()
        if ends is not None and not self._make_way() and ends <= self.clock.now:
            self._refuse_wait(self.admission.latest_in_the_way())

    def _admit(self) -> None:
        """Admit as many in line as fit, and those who reclaim empty lanes."""
        while self.admission.waiting:
            result = self.admission.admit(self.clock.now)
            for refusal in result.refused:
                self._refuse(self.sessions[refusal.session], refusal)
            has_grown = any(session.growth for session in result.admitted)
            for session in result.admitted:
                if session.state is SessionState.RESTORING:
                    self._restore(session)
                else:
                    self._decide(session, "admit")
            # Whoever grew may have left the rest of a lane to others, who were asked before.
            if not self._clear(self.reclaimer.reclaim(self.clock.now)) and not has_grown:
                break

    def _clear(self, reclaim: Reclaim) -> bool:
        """Clear the empty lanes of *reclaim*; return whether there were any."""
        for lane in reclaim.lanes:
            for session in self.lanes.clear(lane):
                self._send_back(session)
        return bool(reclaim.lanes)

    def is_stuck(self) -> bool:
        """Return whether somebody waits to grow and nothing will change by itself."""
        return self._is_still() and self.admission.latest_growing() is not None

    def _is_still(self) -> bool:
        """Return whether there is a line, nobody runs or may come to run, and no memory is on its way."""
        if self.clock.holders or self.ready or not self.admission.waiting or self.offloading.is_coming():
            return False
        return not any(session.is_returning for session in self.claims.open.values())

    def _deadlock_ends(self) -> float | None:
        """Return when one is refused of several who wait for each other's persistent memory; None: they do not.

        It came to that by facts: they turned out to keep more than was foreseen. Only the end of a cell can help.
        """
        latest = self.admission.latest_in_the_way() if self._is_still() else None
        return None if latest is None else self.admission.patience_ends(latest)

    def _unstick(self) -> None:
        """Take back at once what lanes can give, or what those later in line hold; else refuse the latest to grow."""
        if self._clear(self.reclaimer.reclaim(self.clock.now, at_once=True)):
            self._admit()
            self._take_turns()
        elif not self._make_way():
            self._refuse_wait(self.admission.latest_growing())

    def _make_way(self) -> bool:
        """Have some in line moved away for one before them; return whether there are such."""
        chosen = self.offloading.who_gives_way(self.admission.line(), self.queued.values(), self.clock.now)
        for session in chosen:
            if session.state is SessionState.QUEUED:
                self.ledger.set_parked(session, session.live)  # what is live of it is to go, not its lane's
                self._send_back(session)
            self._offload(session)
        if chosen:
            for session in self.lanes.settle():
                self._send_back(session)
            self._take_turns()
        return bool(chosen)

    def _refuse_wait(self, session: Session | None) -> None:
        if session is not None:
            self._refuse(session, self.admission.refuse_wait(session))

    def _take_turns(self) -> None:
        keepers: list[Session] = []
        if self.policy.reserves:
            keepers = [session for session in self.ready.values() if self.policy.keeps_place(session)]
        chosen = turns.choose(
            config=self.config,
            policy=self.policy,
            lanes=self.lanes,
            order=self.order,
            keepers=keepers,
            holders=self.clock.holders.values(),
            now=self.clock.now,
        )
        self._turn_deadline = chosen.deadline
        for session in chosen.revocations:
            self._end_turn(session)
        for session in chosen.grants:
            self._grant(session)
        if chosen.is_unfinished:
            self._take_turns()

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
        self.order.user_changed(session.user)
        session.force_at = math.inf
        if session.lane is not None:
            session.lane.holder = None

    def _offload(self, session: Session) -> None:
        session.is_asked_to_offload = True
        self._actions.append(Offload(session=session.id))

    def _restore(self, session: Session) -> None:
        del self.admission.waiting[session.id]
        self._decide(session, "restore")
        self._actions.append(Restore(session=session.id))

    def _refuse(self, session: Session, refusal: Refuse) -> None:
        if session.state is SessionState.RESTORING:
            del self.admission.waiting[session.id]
            self._decide(session, "refuse to restore")
        else:
            self._decide(session, "refuse")
        self._actions.append(refusal)

    def _send_back(self, session: Session) -> None:
        """Let *session*, which had to leave its lane, come for memory anew."""
        self.lanes.leave(session)
        if session.state is SessionState.QUEUED:
            self._decide(session, "send back")
            self._enter_line(session)

    def _enter_line(self, session: Session) -> None:
        self.admission.waiting[session.id] = session
        session.arrival = next(self._arrivals)
        session.waiting_since = self.clock.now
        session.overtaken_at = None

    # --- changing a session -----------------------------------

    def _measure(self, session: Session, memory: MemoryProfile) -> None:
        # What was promised stays promised, until it is there, or the iteration has ended that it was promised for.
        if session.is_returning:
            memory = _at_least(memory, persistent=session.memory.persistent)
        if session.grown:
            memory = _at_least(memory, ephemeral=session.memory.ephemeral)
        if session.rest is not None:
            rest = min(memory.ephemeral or 0, session.rest)
            memory = MemoryProfile(persistent=memory.persistent, ephemeral=rest, framework=memory.framework)
        self.ledger.set_memory(session, memory)
        if not self.lanes.remeasured(session):
            self._send_back(session)

    def _declare(self, session: Session, iterations: int | None) -> None:
        """Note that *iterations* are left in *session*'s cell, if it says so."""
        if iterations is not None:
            session.declared, session.declared_at = iterations, session.attained

    def _set_live(self, session: Session, live: int) -> None:
        """Note that *live* bytes of an interrupted iteration of *session* are in its lane, or parked from it."""
        session.live = live
        self.ledger.set_parked(session, min(session.parked, live))
        session.grown = min(session.grown, session.parked)
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
        if state in OPEN_STATES:
            self.claims.open[session.id] = session
        else:
            self.claims.open.pop(session.id, None)
        if before in LINE_STATES:
            self.admission.waiting.pop(session.id, None)
            session.growth = 0
        if (index := self._indexes.get(before)) is not None:
            del index[session.id]
        if before is SessionState.QUEUED:
            self.order.remove(session)
        if (index := self._indexes.get(state)) is not None:
            index[session.id] = session
        if (before in ACTIVE_STATES) != (state in ACTIVE_STATES):
            if state in ACTIVE_STATES:
                self.clock.activate(session)
            else:
                self.clock.deactivate(session)
        if state is SessionState.QUEUED:
            session.queued_since = self.clock.now
            self.order.add(session)  # after it was lifted


def _at_least(memory: MemoryProfile, *, persistent: int = 0, ephemeral: int | None = None) -> MemoryProfile:
    """Return *memory* with figures no smaller than those given."""
    if ephemeral is None:
        ephemeral = memory.ephemeral
    elif memory.ephemeral is not None:
        ephemeral = max(ephemeral, memory.ephemeral)
    persistent = max(persistent, memory.persistent)
    return MemoryProfile(persistent=persistent, ephemeral=ephemeral, framework=memory.framework)
