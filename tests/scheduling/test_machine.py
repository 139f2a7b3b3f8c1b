"""Whatever happens, in whatever order: the invariants hold, nobody is stuck, and ending all frees all."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharedkernel.scheduling import MemoryProfile, Scheduler, SchedulerConfig, SessionId, SessionState, UserId
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.actions import (
    Action,
    CreateLane,
    ForceYield,
    Grant,
    Offload,
    Refuse,
    RemoveLane,
    ResizeLane,
    Restore,
    Revoke,
    StopProcess,
    Summon,
)
from sharedkernel.scheduling.model.transitions import TRANSITIONS
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.scheduling.spans import Span, SpanTracker
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.invariants import validate

MIB = 1 << 20
CAPACITY, RESERVE = 100 * MIB, 5 * MIB

configs = st.builds(
    lambda policy, **values: SchedulerConfig(
        capacity=CAPACITY, reserve=RESERVE, policy=policy[0], backfill=policy[1], **values
    ),
    policy=st.sampled_from([("fair", False), ("fifo", True), *((name, False) for name in POLICIES)]),
    quantum=st.sampled_from([0.05, 1.0]),
    preempt_patience=st.sampled_from([0.05, 0.5]),
    overtake_patience=st.sampled_from([0.5, 5.0]),
    growth_patience=st.sampled_from([0.3, 30.0]),
    memory_quantum=st.sampled_from([None, 2.0, 20.0]),
    parallel_lanes=st.sampled_from([1, 1, 2, 3]),
    utilisation_limit=st.sampled_from([1.0, 2.0, 9.0]),
)


def mebibytes(least: int, most: int) -> st.SearchStrategy[int]:
    """Return amounts of memory, mostly whole mebibytes."""
    return st.builds(lambda whole, more: whole * MIB + more, st.integers(least, most), st.sampled_from([0, 0, 1, 5]))


memories = st.builds(
    MemoryProfile,
    persistent=mebibytes(0, 30),
    ephemeral=st.none() | mebibytes(0, 60),
    framework=mebibytes(0, 3),
    needed=st.just(0) | mebibytes(0, 40),
    is_guess=st.booleans(),
)
picks = st.integers(0, 99)


def without_track(span: Span) -> Span:
    """Return *span* without its track: of lanes that begin at once either may have the lower one."""
    return dataclasses.replace(span, track=None)


def where_allowed(event: type[events.SessionEvent], **drawn: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Make a method a rule for a session, one of those in a state that allows *event*."""

    def decorate(method: Callable[..., None]) -> Any:
        def for_any(self: Machine, number: int, **values: Any) -> None:
            names = self.allowing(event)
            method(self, names[number % len(names)], **values)

        for_any.__name__ = method.__name__
        return precondition(lambda self: self.allowing(event))(rule(number=picks, **drawn)(for_any))

    return decorate


class Machine(RuleBasedStateMachine):
    """Sends legal events at random, and carries the actions out on a model of the device."""

    @initialize(
        config=configs,
        crowd=st.lists(st.tuples(mebibytes(0, 60), mebibytes(0, 60), mebibytes(0, 10), st.booleans()), max_size=6),
    )
    def begin(self, config: SchedulerConfig, crowd: list[tuple[int, int, int, bool]]) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.now = 0.0
        self.num_sessions = 0
        #: what sessions did, found by those that each event touched, and by looking at all
        self.spans: list[Span] = []
        self.all_spans: list[Span] = []
        self.tracker = SpanTracker(self.spans.append)
        self.full_tracker = SpanTracker(self.all_spans.append)
        #: lane sizes and granted sessions, as the actions made them
        self.lanes: dict[int, int] = {}
        self.granted: dict[str, int] = {}
        #: sessions that were asked to offload and have not answered, and those that may restore
        self.asked: set[str] = set()
        self.restoring: set[str] = set()
        #: sessions that were called to their gates
        self.summoned: set[str] = set()
        for persistent, ephemeral, framework, is_open in crowd:
            self.start(f"w{len(self.scheduler.sessions)}", "x", framework)
            name = SessionId(f"s{self.num_sessions}")
            memory = MemoryProfile(persistent=0, ephemeral=ephemeral, framework=framework)
            self.send(events.Offloaded(session=name, memory=memory, offloaded=persistent))
            if is_open:
                self.send(events.CellOpened(session=name))

    # --- what the caller sees of the actions -----------------------------------

    def send(self, event: events.Event) -> None:
        if isinstance(event, events.GrantReleased | events.ProcessStopped | events.SessionEnded):
            self.granted.pop(event.session, None)
        if isinstance(event, events.Offloaded | events.OffloadDeclined | events.SessionEnded):
            self.asked.discard(event.session)
        if isinstance(event, events.Restored | events.NotRestored | events.CellClosed | events.SessionEnded):
            self.restoring.discard(event.session)
        if isinstance(event, events.DeviceWanted | events.ProcessStopped | events.CellClosed | events.SessionEnded):
            self.summoned.discard(event.session)
        actions = self.scheduler.handle(event, now=self.now)
        self.follow()
        for action in actions:
            self.may_revoke = POLICIES[self.scheduler.config.policy].is_preemptive
            self.carry_out(action)

    def follow(self) -> None:
        """Compare the spans of the touched sessions with those that looking at every session finds."""
        scheduler = self.scheduler
        self.tracker.follow(self.now, scheduler, scheduler.touched)
        everybody = [SessionId(f"s{number}") for number in range(self.num_sessions + 1)]
        self.full_tracker.follow(self.now, scheduler, everybody)
        spans = [without_track(span) for span in (*self.spans, *self.tracker.under_way(self.now + 1))]
        assert Counter(spans) == Counter(
            without_track(span) for span in (*self.all_spans, *self.full_tracker.under_way(self.now + 1))
        )
        self.spans.clear()
        self.all_spans.clear()

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateLane(lane=lane, size=size):
                assert lane not in self.lanes
                self.lanes[lane] = size
            case ResizeLane(lane=lane, size=size):
                assert lane not in self.granted.values(), "a lane was resized while it runs"
                assert self.lanes[lane] != size
                self.lanes[lane] = size
            case RemoveLane(lane=lane):
                assert lane not in self.granted.values(), "a lane was removed while it runs"
                del self.lanes[lane]
            case Grant(session=session, lane=lane, parallel=parallel):
                assert lane in self.lanes
                assert lane not in self.granted.values(), "two sessions were granted one lane"
                assert session not in self.granted
                self.granted[session] = lane
                assert parallel <= self.config.parallel_lanes
            case Revoke(session=session) | ForceYield(session=session) | StopProcess(session=session):
                assert session in self.granted
                has_asked = self.may_revoke or self.scheduler.sessions[session].state is SessionState.PREEMPTING
                assert has_asked, f"{self.scheduler.config.policy} took a grant back"
            case Summon(session=session):
                assert self.scheduler.sessions[session].state is SessionState.READY
                self.summoned.add(session)
            case Offload(session=session):
                assert self.scheduler.sessions[session].state in (SessionState.IDLE, SessionState.WAITING)
                assert session not in self.asked
                self.asked.add(session)
            case Restore(session=session):
                assert self.scheduler.sessions[session].state is SessionState.RESTORING
                assert session not in self.restoring
                self.restoring.add(session)
            case Refuse(shortage=shortage):
                assert explain_shortage(shortage).endswith(".")

    # --- what may happen -----------------------------------

    def sessions(self, *states: SessionState) -> list[SessionId]:
        return [session.id for session in self.scheduler.sessions.values() if session.state in states]

    def allowing(self, event: type[events.SessionEvent]) -> list[SessionId]:
        return self.sessions(*(state for state, kind in TRANSITIONS if kind is event))

    def pick(self, names: list[SessionId], number: int) -> SessionId:
        return names[number % len(names)]

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.04, 0.3, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(events.Tick())

    @precondition(lambda self: self.scheduler.next_deadline() is not None)
    @rule()
    def deadline_expires(self) -> None:
        deadline = self.scheduler.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.send(events.Tick())

    @rule(policy=st.sampled_from(list(POLICIES)))
    def switch(self, policy: str) -> None:
        """Let another policy rank from now on: nothing is taken from anybody who holds a grant by that alone."""
        held = dict(self.granted)
        self.send(events.PolicyConfigured(policy=policy))
        assert held.items() <= self.granted.items()

    @precondition(lambda self: len(self.scheduler.sessions) < 7)
    @rule(user=st.sampled_from("uvw"), domain=st.sampled_from("xxy"), framework=mebibytes(0, 3))
    def start(self, user: str, domain: str, framework: int) -> None:
        self.num_sessions += 1
        name = SessionId(f"s{self.num_sessions}")
        self.send(events.SessionStarted(session=name, user=UserId(user), domain=domain, framework=framework))

    @rule(
        user=st.sampled_from("uvw"),
        share=st.sampled_from([0.5, 1.0, 4.0]),
        quota=st.none() | mebibytes(0, 90),
        offload_after=st.sampled_from([None, 0.0, 0.3, 30.0]),
        priority=st.sampled_from([0, 0, -1, 3]),
    )
    def configure(self, user: str, share: float, quota: int | None, offload_after: float | None, priority: int) -> None:
        event = events.UserConfigured(
            user=UserId(user), share=share, quota=quota, offload_after=offload_after, priority=priority
        )
        self.send(event)

    @rule(user=st.sampled_from("uvw"), size=mebibytes(0, 20))
    def shelve(self, user: str, size: int) -> None:
        self.send(events.ShelfMeasured(user=UserId(user), bytes=size))

    @where_allowed(events.UsedWithoutGrant, seconds=st.sampled_from([0.0, 0.04, 6.0]))
    def use_without_grant(self, session: SessionId, seconds: float) -> None:
        self.send(events.UsedWithoutGrant(session=session, seconds=seconds))

    @where_allowed(events.CellOpened, source=st.sampled_from([None, "a", "b"]))
    def open(self, session: SessionId, source: str | None) -> None:
        self.send(events.CellOpened(session=session, source=source))

    @where_allowed(
        events.DeviceWanted,
        memory=st.none() | memories,
        growth=st.just(0) | mebibytes(0, 40),
        context=st.just(0) | mebibytes(0, 40),
        remaining=st.sampled_from([None, None, 0, 2, 50]),
    )
    def want(
        self, session: SessionId, memory: MemoryProfile | None, growth: int, context: int, remaining: int | None
    ) -> None:
        self.send(
            events.DeviceWanted(
                session=session, memory=memory, growth=growth, context=context, remaining_iterations=remaining
            )
        )

    @where_allowed(events.DeviceWantWithdrawn)
    def withdraw(self, session: SessionId) -> None:
        self.send(events.DeviceWantWithdrawn(session=session))

    @where_allowed(
        events.GrantReleased,
        at=st.sampled_from(["boundary", "boundary", "cell", "yield"]),
        memory=memories,
        live=mebibytes(0, 40),
        utilisation=st.none() | st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    )
    def release(
        self, session: SessionId, at: events.ReleasePoint, memory: MemoryProfile, live: int, utilisation: float | None
    ) -> None:
        event = events.GrantReleased(
            session=session, at=at, memory=memory, live_bytes=live, iterations=1, utilisation=utilisation
        )
        self.send(event)

    @where_allowed(events.HolderIdle)
    def hold_idly(self, session: SessionId) -> None:
        self.send(events.HolderIdle(session=session))

    @where_allowed(events.ProcessStopped, live=mebibytes(0, 40))
    def stop(self, session: SessionId, live: int) -> None:
        memory = self.scheduler.sessions[session].memory
        self.send(events.ProcessStopped(session=session, memory=memory, live_bytes=live))

    @where_allowed(events.MemoryMeasured, memory=memories)
    def measure(self, session: SessionId, memory: MemoryProfile) -> None:
        self.send(events.MemoryMeasured(session=session, memory=memory))

    @where_allowed(events.CellClosed, memory=memories)
    def close(self, session: SessionId, memory: MemoryProfile) -> None:
        self.send(events.CellClosed(session=session, memory=memory))

    @where_allowed(events.GrantReleased, live=mebibytes(0, 40), growth=mebibytes(0, 40))
    def grow(self, session: SessionId, live: int, growth: int) -> None:
        """Interrupt an iteration that came to need more than it has."""
        memory = self.scheduler.sessions[session].memory
        self.send(events.GrantReleased(session=session, at="yield", memory=memory, live_bytes=live))
        self.send(events.DeviceWanted(session=session, memory=memory, growth=growth))

    def movable(self) -> list[SessionId]:
        """Return the sessions that were asked to move away and can, else those that are idle."""
        asked = [session for session in self.allowing(events.Offloaded) if session in self.asked]
        return asked or self.sessions(SessionState.IDLE)

    @where_allowed(events.OffloadRequested)
    def request_offload(self, session: SessionId) -> None:
        self.send(events.OffloadRequested(session=session))

    @precondition(lambda self: self.movable())
    @rule(number=picks, stays=st.sampled_from([0.0, 0.0, 0.5]))
    def offload(self, number: int, stays: float) -> None:
        """Let a session answer by moving away; some come unasked, as from a session that is taken over."""
        session = self.pick(self.movable(), number)
        memory, live = self.scheduler.sessions[session].memory, self.scheduler.sessions[session].iteration.live
        kept = int(memory.persistent * stays)
        left = MemoryProfile(persistent=kept, ephemeral=memory.ephemeral, framework=memory.framework)
        self.send(events.Offloaded(session=session, memory=left, offloaded=memory.persistent - kept + live))

    @precondition(lambda self: self.asked)
    @rule(number=picks)
    def decline(self, number: int) -> None:
        self.send(events.OffloadDeclined(session=SessionId(sorted(self.asked)[number % len(self.asked)])))

    @precondition(lambda self: self.scheduler.sessions)
    @rule(number=picks, detached=st.booleans())
    def detach(self, number: int, detached: bool) -> None:
        """Shut a session down, or give it back."""
        session = self.pick(list(self.scheduler.sessions), number)
        self.send(events.SessionDetached(session=session, detached=detached))

    @precondition(lambda self: self.restoring)
    @rule(number=picks, memory=memories)
    def restored(self, number: int, memory: MemoryProfile) -> None:
        self.send(
            events.Restored(session=SessionId(sorted(self.restoring)[number % len(self.restoring)]), memory=memory)
        )

    @where_allowed(events.NotRestored)
    def not_restored(self, session: SessionId) -> None:
        """Let a session find no room; some say so unasked, as one whose report crosses with an executor's restart."""
        records = self.scheduler.sessions[session]
        came = records.returning if records.offload.is_returning else 0
        memory = dataclasses.replace(records.memory, persistent=records.memory.persistent - came)
        self.send(events.NotRestored(session=session, memory=memory))

    @where_allowed(events.CellInterrupted)
    def interrupt(self, session: SessionId) -> None:
        self.send(events.CellInterrupted(session=session))

    @where_allowed(events.SessionEnded)
    def end(self, session: SessionId) -> None:
        self.send(events.SessionEnded(session=session))

    # --- what always holds -----------------------------------

    @invariant()
    def is_valid(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        validate(self.scheduler)
        snapshot = self.scheduler.snapshot(self.now)
        for session in snapshot.sessions:
            assert (session.needed is None) == (session.free is None)
            assert session.needed is None or 0 <= (session.free or 0) < session.needed, session
        assert {lane.id: lane.size for lane in snapshot.lanes} == self.lanes
        holders = {lane.holder: lane.id for lane in snapshot.lanes if lane.holder is not None}
        assert holders == self.granted
        positions = [session.queue_position for session in snapshot.sessions if session.queue_position is not None]
        assert sorted(positions) == list(range(1, len(positions) + 1))
        assert self.scheduler.has_queue == bool(positions)
        deadline = self.scheduler.next_deadline()
        assert deadline is None or deadline > self.now

    # --- what always ends -----------------------------------

    def cooperate(self) -> bool:
        """Let one session do what it was asked to; return whether there was anything to do."""
        states = {session.id: session.state for session in self.scheduler.sessions.values()}
        for name in sorted(self.asked):
            self.movable_answers(SessionId(name), states[SessionId(name)])
            return True
        for name in sorted(self.restoring):
            session = self.scheduler.sessions[SessionId(name)]
            memory = dataclasses.replace(session.memory, persistent=session.memory.persistent)
            self.send(events.Restored(session=session.id, memory=memory))
            return True
        for session in self.sessions(SessionState.PREEMPTING):
            memory = self.scheduler.sessions[session].memory
            # a boundary measures: one that never did would be asked for the next one for ever
            memory = dataclasses.replace(memory, ephemeral=memory.ephemeral or 0)
            self.send(events.GrantReleased(session=session, at="boundary", memory=memory))
            self.send(events.DeviceWanted(session=session))
            return True
        for name in sorted(self.summoned):
            self.send(events.DeviceWanted(session=SessionId(name)))
            return True
        return False

    def movable_answers(self, session: SessionId, state: SessionState) -> None:
        memory, live = self.scheduler.sessions[session].memory, self.scheduler.sessions[session].iteration.live
        if state not in (SessionState.IDLE, SessionState.WAITING):
            self.send(events.OffloadDeclined(session=session, for_now=True))
            return
        left = MemoryProfile(ephemeral=memory.ephemeral, framework=memory.framework)
        self.send(events.Offloaded(session=session, memory=left, offloaded=memory.persistent + live))

    def check_that_nobody_waits_for_ever(self) -> None:
        """If all do what they are asked to, each in line has its memory, or is refused, after a bounded time."""
        demand = self.scheduler._records.demand
        waiting = self.scheduler._records.admission.waiting
        cut_short = {name: session for name, session in waiting.items() if session.offload.is_cut_short}
        hopeless = {name for name, session in cut_short.items() if demand.excess(session) > 0}
        left = {(name, session.wait.arrival) for name, session in waiting.items() if name not in hopeless}
        began, turns = self.now, 0.0
        for _ in range(20_000):
            if not left:
                return
            if not self.cooperate():
                deadline = self.scheduler.next_deadline()
                assert deadline is not None, f"nothing will ever happen, and {left} wait"
                turns = max(turns, self.all_turns())  # what was moved meanwhile may have been slow
                # the longest `offload_after`, patience of growth, and turns by share, with room for what comes before
                assert deadline <= began + 400.0 + turns, f"{left} still wait"
                self.now = max(self.now, deadline)
                self.send(events.Tick())
            left &= {(name, session.wait.arrival) for name, session in waiting.items()}
        raise AssertionError("it does not come to an end")

    def all_turns(self) -> float:
        """Return how long the turns of all last until the one with the smallest share has had its own, seconds."""
        speed, sessions = self.scheduler._records.turns.speed, self.scheduler.sessions.values()
        transfers = [speed.seconds_out(session) + speed.seconds_back(session) for session in sessions]
        longest = min(10.0 * max(transfers, default=0.0), 600.0)
        shares = [session.user.share for session in sessions]
        return longest * (sum(shares) / min(shares) + 1) if shares else 0.0

    def teardown(self) -> None:
        """Let those in line have their memory; then end every session: that frees everything."""
        if not hasattr(self, "scheduler"):
            return
        config = self.scheduler.config
        if config.memory_quantum is not None and config.policy in ("fair", "srtf", "las", "gittins"):
            self.check_that_nobody_waits_for_ever()
        for session in list(self.scheduler.sessions):
            self.send(events.SessionEnded(session=session))
        validate(self.scheduler)
        snapshot = self.scheduler.snapshot(self.now)
        assert (self.scheduler.ledger.used, snapshot.lanes, snapshot.sessions) == (snapshot.shelf, (), ())
        assert self.scheduler.next_deadline() is None
        assert self.lanes == {}
        assert self.granted == {}
        assert self.asked == self.restoring == set()


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=50)
