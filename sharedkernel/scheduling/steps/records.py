"""The records of one device, its users, sessions, lanes and memory, and the elementary changes to them.

Each session is in the indexes of its state: the idle, the ready, the queued, those with an open cell, the active ones.
:meth:`Records.enter` keeps that so; nothing else changes a session's state. `handlers.py` knows what an event means,
`reconcile.py` what follows from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from sharedkernel.scheduling.memory.admission import Admission
from sharedkernel.scheduling.memory.demand import LEAST_OFFLOAD, MemoryDemand
from sharedkernel.scheduling.memory.lanes import LanePlanner
from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.memory.memory_turns import MemoryTurns
from sharedkernel.scheduling.memory.offloading import Offloading
from sharedkernel.scheduling.memory.reclaim import Reclaimer
from sharedkernel.scheduling.model.actions import Action
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.events import Event, SessionEvent, UserConfigured
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.transitions import DECISIONS, TRANSITIONS
from sharedkernel.scheduling.model.types import (
    ACTIVE_STATES,
    MEMORY_QUEUE_STATES,
    OPEN_STATES,
    MemoryProfile,
    SessionId,
    SessionState,
    UserId,
)
from sharedkernel.scheduling.policies.accounting import ServiceClock
from sharedkernel.scheduling.policies.predictions import Predictions
from sharedkernel.scheduling.policies.registry import make_policy
from sharedkernel.scheduling.steps.dispatch import RunQueue


class Records:
    """The records of one device, shared by all parts of its scheduler.

    Parameters
    ----------
    config
        How the device is scheduled.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.users: dict[UserId, User] = {}
        self.sessions: dict[SessionId, Session] = {}
        #: actions decided since the present event, in order
        self.actions: list[Action] = []
        #: sessions that the present event concerns, and those whose state or memory it changed, in order
        self.touched: dict[SessionId, None] = {}
        self.ledger = Ledger(config.capacity, config.reserve, self.touched)
        self.lanes = LanePlanner(self.ledger, self.actions)
        self.clock = ServiceClock(config.quantum, config.parallel_lanes)
        self.demand = MemoryDemand(self.ledger, self.lanes, self.sessions, self.touched)
        self.predictions = Predictions(self.demand.open.values)
        self.policy = make_policy(config, self.predictions)
        idle: dict[SessionId, Session] = {}
        self.turns = MemoryTurns(config, self.policy, self.demand, self.users, idle)
        self.offloading = Offloading(self.demand, self.turns, idle, self.clock.holders)
        self.admission = Admission(config, self.policy, self.offloading, self.users, self.clock.holders)
        self.reclaimer = Reclaimer(self.admission)
        self.run_queue = RunQueue(self.policy, self.lanes)
        #: all sessions that are `queued`, `ready`
        self.queued: dict[SessionId, Session] = {}
        self.ready: dict[SessionId, Session] = {}
        #: indexes of sessions by state
        self.indexes: dict[SessionState, dict[SessionId, Session]] = {
            SessionState.IDLE: self.offloading.idle,
            SessionState.QUEUED: self.queued,
            SessionState.READY: self.ready,
        }
        self._arrivals = itertools.count(1)

    def user(self, user: UserId) -> User:
        """Return the record of *user*, a new one if there is none."""
        return self.users.setdefault(user, User(id=user))

    def configure(self, config: SchedulerConfig) -> None:
        """Rank by *config*'s policy from now on; no grant is lost by that alone."""
        self.config = config
        self.policy = make_policy(config, self.predictions)
        self.admission.config, self.admission.policy = config, self.policy
        self.turns.config, self.turns.policy = config, self.policy
        self.run_queue.rebuild(self.policy, self.queued.values())

    def begin(self, event: Event) -> None:
        """Forget what the last event touched; *event* touches its session, or all of its user's."""
        self.demand.update_residue()
        self.touched.clear()
        if isinstance(event, SessionEvent):
            self.touched[event.session] = None
        elif isinstance(event, UserConfigured) and event.user in self.users:
            self.touched.update(dict.fromkeys(self.users[event.user].sessions))

    # --- a session's state -----------------------------------

    def decide(self, session: Session, decision: str) -> None:
        """Change a session's state by a decision.

        Parameters
        ----------
        session
            In the state that the decision starts from.
        decision
            A key of :data:`.DECISIONS`.
        """
        before, after = DECISIONS[decision]
        assert session.state is before, f"cannot {decision} session {session.id} while it is {session.state}"
        self.enter(session, after, decision)

    def move(self, session: Session, event: SessionEvent) -> None:
        """Change a session's state by an event, or only write it into its story.

        Parameters
        ----------
        session
            In a state that allows the event.
        event
            One of the session's.
        """
        self.enter(session, TRANSITIONS[session.state, type(event)], type(event).__name__)

    def enter(self, session: Session, state: SessionState, reason: str) -> None:
        """Change a session's state, its indexes and its story.

        Parameters
        ----------
        session
            To be changed.
        state
            The new state.
        reason
            An event's or a decision's name, for the story.
        """
        self.touched[session.id] = None
        before, session.state = session.state, state
        session.story.append((self.clock.now, reason, state))
        if before is state:
            return
        if state in OPEN_STATES:
            self.demand.open[session.id] = session
        else:
            self.demand.open.pop(session.id, None)
        if before in MEMORY_QUEUE_STATES:
            self.admission.dequeue(session)
            session.iteration.growth = 0
        if (index := self.indexes.get(before)) is not None:
            del index[session.id]
        if before is SessionState.QUEUED:
            self.run_queue.remove(session)
        if (index := self.indexes.get(state)) is not None:
            index[session.id] = session
        if (before in ACTIVE_STATES) != (state in ACTIVE_STATES):
            if state in ACTIVE_STATES:
                self.clock.activate(session)
            else:
                self.clock.deactivate(session)
        if state is SessionState.QUEUED:
            session.wait.queued_since = self.clock.now
            self.run_queue.add(session)  # after it was lifted

    # --- the memory queue -----------------------------------

    def enqueue(self, session: Session) -> None:
        """Put *session* at the end of the memory queue."""
        session.wait.arrival = next(self._arrivals)
        session.wait.since = self.clock.now
        session.wait.overtaken_at = session.wait.delayed_at = None
        self.admission.enqueue(session)

    def cancel_eviction(self, session: Session) -> None:
        """Withdraw the eviction of *session*."""
        session.offload.is_asked = False
        session.residence.cancel()
        if self.turns.leaving.pop(session.id, None) is not None:
            self.ledger.revision += 1

    def send_back(self, session: Session) -> None:
        """Take *session* out of its lane; if it is queued, it enters the memory queue again."""
        self.lanes.leave(session)
        if session.state is SessionState.QUEUED:
            self.decide(session, "send back")
            self.enqueue(session)

    # --- what a session holds -----------------------------------

    @property
    def is_contended(self) -> bool:
        """Whether a session holds a grant that others wait for, or for its memory, and that is to be had from it."""
        return self.policy.is_preemptive and bool(self.clock.holders) and bool(self.queued or self.admission.waiting)

    def measure(self, session: Session, memory: MemoryProfile) -> None:
        """Charge a session for its measured memory; it leaves its lane if that is too small now.

        Parameters
        ----------
        session
            Was measured.
        memory
            Bytes.
        """
        # A promise is kept until the memory is there, or the iteration that it was made for has ended.
        if session.offload.is_returning:
            memory = at_least(memory, persistent=session.memory.persistent)
        if session.iteration.growth_parked:
            memory = at_least(memory, ephemeral=session.memory.ephemeral)
        if session.offload.remaining_ephemeral is not None:
            rest = min(memory.ephemeral or 0, session.offload.remaining_ephemeral)
            memory = dataclasses.replace(memory, ephemeral=rest)
        had_memory = session.memory.persistent >= LEAST_OFFLOAD
        self.ledger.set_memory(session, memory)
        if not had_memory and memory.persistent >= LEAST_OFFLOAD:
            session.residence.began = self.clock.now
        if not self.lanes.remeasured(session):
            self.send_back(session)

    def set_live(self, session: Session, live: int) -> None:
        """Set the live bytes of a session's interrupted iteration.

        Parameters
        ----------
        session
            Its iteration was interrupted, or has ended.
        live
            Bytes in its lane and parked; 0: nothing is live.
        """
        if live != session.iteration.live:
            session.iteration.live = live
            self.ledger.revision += 1
        self.ledger.set_parked(session, min(session.iteration.parked, live))
        session.iteration.growth_parked = min(session.iteration.growth_parked, session.iteration.parked)
        lane = session.lane
        if lane is not None:
            if session.iteration.unparked:
                lane.occupant = session
            elif lane.occupant is session:
                lane.occupant = None

    def end_grant(self, session: Session) -> None:
        """Take the grant from *session*, which has released it."""
        self.clock.end(session)
        self.run_queue.user_changed(session.user)
        session.preemption.force_at, session.preemption.num_signals = math.inf, 0
        if session.lane is not None:
            session.lane.holder = None


def at_least(memory: MemoryProfile, *, persistent: int = 0, ephemeral: int | None = None) -> MemoryProfile:
    """Return a memory profile with figures no smaller than given ones.

    Parameters
    ----------
    memory
        The profile.
    persistent, ephemeral
        Bytes; None: no lower limit.
    """
    if ephemeral is None:
        ephemeral = memory.ephemeral
    elif memory.ephemeral is not None:
        ephemeral = max(ephemeral, memory.ephemeral)
    return dataclasses.replace(memory, persistent=max(persistent, memory.persistent), ephemeral=ephemeral)
