"""Whatever happens, in whatever order: the invariants hold, nobody is stuck, and ending all frees all."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharedkernel.scheduling import MemoryProfile, Scheduler, SchedulerConfig, SessionId, SessionState, UserId
from sharedkernel.scheduling.actions import (
    Action,
    CreateLane,
    ForceYield,
    Grant,
    Refuse,
    RemoveLane,
    ResizeLane,
    Revoke,
)
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
    Tick,
    UserConfigured,
)
from sharedkernel.scheduling.transitions import TRANSITIONS

CAPACITY, RESERVE = 100, 5

configs = st.builds(
    lambda policy, **values: SchedulerConfig(
        capacity=CAPACITY, reserve=RESERVE, policy=policy[0], backfill=policy[1], **values
    ),
    policy=st.sampled_from([("fair", False), ("fair", False), ("fifo", False), ("fifo", True)]),
    quantum=st.sampled_from([0.05, 1.0]),
    preempt_patience=st.sampled_from([0.05, 0.5]),
    overtake_patience=st.sampled_from([0.5, 5.0]),
    parallel_lanes=st.integers(1, 3),
    utilisation_limit=st.sampled_from([1.0, 2.0, 9.0]),
)
memories = st.builds(
    MemoryProfile,
    persistent=st.integers(0, 30),
    ephemeral=st.none() | st.integers(0, 60),
    framework=st.integers(0, 3),
)
picks = st.integers(0, 99)


class Machine(RuleBasedStateMachine):
    """Sends legal events at random, and carries the actions out on a model of the device."""

    @initialize(config=configs)
    def begin(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.now = 0.0
        self.num_sessions = 0
        #: lane sizes and granted sessions, as the actions made them
        self.lanes: dict[int, int] = {}
        self.granted: dict[str, int] = {}

    # --- what the caller sees of the actions -----------------------------------

    def send(self, event: Event) -> None:
        if isinstance(event, GrantReleased | SessionEnded):
            self.granted.pop(event.session, None)
        for action in self.scheduler.handle(event, now=self.now):
            self.carry_out(action)

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
            case Revoke(session=session) | ForceYield(session=session):
                assert session in self.granted
                assert self.config.policy == "fair", "fifo took a grant back"
            case Refuse(message=message):
                assert message.endswith(".")

    # --- what may happen -----------------------------------

    def sessions(self, *states: SessionState) -> list[SessionId]:
        return [session.id for session in self.scheduler.sessions.values() if session.state in states]

    def allowing(self, event: type[SessionEvent]) -> list[SessionId]:
        return self.sessions(*(state for state, kind in TRANSITIONS if kind is event))

    def pick(self, names: list[SessionId], number: int) -> SessionId:
        return names[number % len(names)]

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.04, 0.3, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(Tick())

    @precondition(lambda self: self.scheduler.next_deadline() is not None)
    @rule()
    def deadline_expires(self) -> None:
        deadline = self.scheduler.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.send(Tick())

    @precondition(lambda self: len(self.scheduler.sessions) < 7)
    @rule(user=st.sampled_from("uvw"), domain=st.sampled_from("xxy"), framework=st.integers(0, 3))
    def start(self, user: str, domain: str, framework: int) -> None:
        self.num_sessions += 1
        name = SessionId(f"s{self.num_sessions}")
        self.send(SessionStarted(session=name, user=UserId(user), domain=domain, framework=framework))

    @rule(user=st.sampled_from("uvw"), share=st.sampled_from([0.5, 1.0, 4.0]), quota=st.none() | st.integers(0, 90))
    def configure(self, user: str, share: float, quota: int | None) -> None:
        self.send(UserConfigured(user=UserId(user), share=share, quota=quota))

    @precondition(lambda self: self.allowing(CellOpened))
    @rule(number=picks)
    def open(self, number: int) -> None:
        self.send(CellOpened(session=self.pick(self.allowing(CellOpened), number)))

    @precondition(lambda self: self.allowing(DeviceWanted))
    @rule(number=picks, memory=st.none() | memories)
    def want(self, number: int, memory: MemoryProfile | None) -> None:
        self.send(DeviceWanted(session=self.pick(self.allowing(DeviceWanted), number), memory=memory))

    @precondition(lambda self: self.allowing(DeviceWantWithdrawn))
    @rule(number=picks)
    def withdraw(self, number: int) -> None:
        self.send(DeviceWantWithdrawn(session=self.pick(self.allowing(DeviceWantWithdrawn), number)))

    @precondition(lambda self: self.allowing(GrantReleased))
    @rule(
        number=picks,
        at=st.sampled_from(["boundary", "boundary", "cell", "yield"]),
        memory=memories,
        live=st.integers(0, 40),
        utilisation=st.none() | st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    )
    def release(self, number: int, at: str, memory: MemoryProfile, live: int, utilisation: float | None) -> None:
        session = self.pick(self.allowing(GrantReleased), number)
        event = GrantReleased(
            session=session,
            at=at,  # type: ignore[arg-type]
            memory=memory,
            live_bytes=live,
            iterations=1,
            utilisation=utilisation,
        )
        self.send(event)

    @precondition(lambda self: self.allowing(MemoryMeasured))
    @rule(number=picks, memory=memories)
    def measure(self, number: int, memory: MemoryProfile) -> None:
        self.send(MemoryMeasured(session=self.pick(self.allowing(MemoryMeasured), number), memory=memory))

    @precondition(lambda self: self.allowing(CellClosed))
    @rule(number=picks, memory=memories)
    def close(self, number: int, memory: MemoryProfile) -> None:
        self.send(CellClosed(session=self.pick(self.allowing(CellClosed), number), memory=memory))

    @precondition(lambda self: self.allowing(SessionEnded))
    @rule(number=picks)
    def end(self, number: int) -> None:
        self.send(SessionEnded(session=self.pick(self.allowing(SessionEnded), number)))

    # --- what always holds -----------------------------------

    @invariant()
    def is_valid(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.validate()
        snapshot = self.scheduler.snapshot(self.now)
        assert {lane.id: lane.size for lane in snapshot.lanes} == self.lanes
        holders = {lane.holder: lane.id for lane in snapshot.lanes if lane.holder is not None}
        assert holders == self.granted
        positions = [session.queue_position for session in snapshot.sessions if session.queue_position is not None]
        assert sorted(positions) == list(range(1, len(positions) + 1))
        deadline = self.scheduler.next_deadline()
        assert deadline is None or deadline > self.now

    def teardown(self) -> None:
        """End every session: that frees everything."""
        if not hasattr(self, "scheduler"):
            return
        for session in list(self.scheduler.sessions):
            self.send(SessionEnded(session=session))
        self.scheduler.validate()
        snapshot = self.scheduler.snapshot(self.now)
        assert (snapshot.used, snapshot.lanes, snapshot.sessions) == (0, (), ())
        assert self.scheduler.next_deadline() is None
        assert self.lanes == {}
        assert self.granted == {}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
