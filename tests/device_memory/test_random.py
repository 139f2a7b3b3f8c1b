"""Random steps of several sessions in one lane: whatever the order, nothing of anybody is touched or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.store import LaneStore
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import LANE, Session, open_descriptors

_SIZES = st.sampled_from([1, 512, 4096, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 14 * MIB])


class Sessions(RuleBasedStateMachine):
    """Three sessions of two users; one at a time has the lane, any may be offloaded."""

    #: taken in all runs
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.descriptors = open_descriptors()
        self.store = LaneStore(MemfdDriver())
        self.holder: Session | None = None
        self.is_stale: set[Session] = set()
        self.sessions: list[Session] = []

    @initialize(version=st.sampled_from(["2.11.0", "2.13.0"]), check_lanes=st.booleans())
    def begin(self, version: str, check_lanes: bool) -> None:
        self.store.create_lane(LANE, 24 * MIB)
        for name, user in (("a", "ada"), ("b", "ada"), ("c", "bob")):
            session = Session(self.store, name, user, version=version, check_lanes=check_lanes, warm_up=1)
            session.set_lane()
            self.sessions.append(session)

    def _pick(self, number: int) -> Session:
        return self.sessions[number % 3]

    def _check(self, session: Session) -> None:
        if not session.memory.is_away:
            session.check_all()

    # --- turns -----------------------------------

    @precondition(lambda self: self.holder is None)
    @rule(number=st.integers(0, 2), new_job=st.booleans())
    def take_a_turn(self, number: int, new_job: bool) -> None:
        session = self._pick(number)
        if session.memory.is_away:
            session.restore()
            self.is_stale.add(session)
        if session in self.is_stale:
            session.set_lane()
            self.is_stale.discard(session)
        if new_job:
            session.memory.start_job()
        session.begin()
        self.holder = session
        self._check(session)

    @precondition(lambda self: self.holder is not None)
    @rule()
    def pass_a_boundary(self) -> None:
        assert self.holder is not None
        self.holder.memory.next_iteration()
        self._check(self.holder)

    @precondition(lambda self: self.holder is not None)
    @rule(at=st.sampled_from(["boundary", "cell", "yield"]), is_full=st.sampled_from([False, False, True]))
    def hand_over(self, at: str, is_full: bool) -> None:
        assert self.holder is not None
        session, self.holder = self.holder, None
        session.supplier.is_device_full = is_full
        if session.hand_over(at):
            session.memory.leave_lane()
            self.store.resize_lane(LANE, 24 * MIB)
            self.is_stale.update(self.sessions)
        session.supplier.is_device_full = False
        for each in self.sessions:
            self._check(each)
            each.validate()

    # --- memory -----------------------------------

    @precondition(lambda self: self.holder is not None)
    @rule(size=_SIZES, byte=st.integers(1, 254), side_stream=st.booleans())
    def allocate(self, size: int, byte: int, side_stream: bool) -> None:
        assert self.holder is not None
        if sum(block.size for block in self.holder.written) < 60 * MIB:
            block = self.holder.allocate(size, byte)
            if side_stream:
                self.holder.torch.record_stream(block, 3)

    @precondition(lambda self: self.holder is not None and self.holder.written)
    @rule(number=st.integers(0, 1000), count=st.integers(1, 8))
    def free(self, number: int, count: int) -> None:
        assert self.holder is not None
        for _ in range(count):
            blocks = list(self.holder.written)
            if blocks:
                self.holder.free(blocks[number % len(blocks)])

    @rule(number=st.integers(0, 2), size=_SIZES, byte=st.integers(1, 254))
    def allocate_outside_iterations(self, number: int, size: int, byte: int) -> None:
        session = self._pick(number)
        if session is not self.holder and not session.memory.is_away and len(session.written) < 40:
            session.allocate(size, byte)

    @rule(number=st.integers(0, 2))
    def empty_the_cache(self, number: int) -> None:
        session = self._pick(number)
        session.memory.trim()
        self._check(session)
        session.validate()

    @rule(number=st.integers(0, 2), is_asked=st.sampled_from([True, False, False]))
    def offload(self, number: int, is_asked: bool) -> None:
        session = self._pick(number)
        if is_asked and session is not self.holder and not session.memory.is_away:
            session.offload()
            session.validate()

    @precondition(lambda self: self.holder is None)
    @rule(size=st.sampled_from([0, 28 * MIB, 32 * MIB]))
    def resize_the_lane(self, size: int) -> None:
        before = self.store.layout(LANE)
        if self.store.resize_lane(LANE, size) != before:
            self.is_stale.update(self.sessions)
        self.store.validate()

    def teardown(self) -> None:
        for session in self.sessions:
            if session is self.holder:
                session.hand_over("cell")
            self._check(session)
            session.validate()
            session.close()
        if self.sessions:
            self.store.remove_lane(LANE)
            assert self.store.account().total == 0
        assert open_descriptors() == self.descriptors

    @invariant()
    def count(self) -> None:
        Sessions.steps += 1


@pytest.mark.hypothesis  # which it does not have by itself, as it has more to say
@pytest.mark.timeout(600)  # a fraction of it on a machine that does nothing else
@pytest.mark.heavy
class TestSessions(Sessions.TestCase):
    settings = settings(stateful_step_count=300, database=None, suppress_health_check=list(HealthCheck))

    def runTest(self) -> None:
        """No step of any run breaks anything, and there were enough of them."""
        super().runTest()
        assert Sessions.steps >= 160 * self.settings.max_examples
