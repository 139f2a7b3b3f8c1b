"""The executor's side: every unit in one account, and memory free only when it is gone everywhere."""

from __future__ import annotations

import os

import pytest

from sharedkernel.device_memory.driver import MIB, InvalidMapping, OutOfDeviceMemory
from sharedkernel.device_memory.layout import LEAST_LANE, SMALL_UNIT, lane_bytes, plan_lane, plan_private
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.ipc.seqpacket import MAX_DESCRIPTORS
from tests.device_memory.faults import FaultyDriver
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import open_descriptors

GIB = 1024 * MIB


@pytest.fixture
def driver():
    return MemfdDriver()


@pytest.fixture
def store(driver):
    store = LaneStore(driver, capacity=512 * MIB)
    yield store
    store.validate()
    assert driver.created <= store.account().total


def test_a_lane_is_as_large_as_it_has_to_be():
    """Small units up to 256 MiB, few large ones above, and never less than torch asks for at once."""
    for size in (0, 1, 24 * MIB, 24 * MIB + 1, 100 * MIB, 2 * GIB, 2 * GIB + 1, 5 * GIB, 40 * GIB, 130 * GIB):
        plan = plan_lane(size)
        assert sum(plan) == lane_bytes(size)
        assert 0 <= lane_bytes(size) - max(size, LEAST_LANE) < SMALL_UNIT
        assert plan[0] == SMALL_UNIT
        assert len(plan) < 200 + size // (64 * MIB)
        if size <= 256 * MIB:
            assert set(plan) == {SMALL_UNIT}
    assert plan_private(101 * MIB) == [64 * MIB, 32 * MIB, *[2 * MIB] * 3]


def test_accounts_add_up(store, driver):
    """Lanes and private units; what is taken back is free."""
    store.create_lane(1, 100 * MIB)
    units = store.give_private("a", [2 * MIB, 16 * MIB])
    store.give_private("b", [2 * MIB])
    account = store.account()
    assert account.lanes == {1: 100 * MIB}
    assert account.private == {"a": 18 * MIB, "b": 2 * MIB}
    assert account.total == 120 * MIB == driver.created
    store.take_back("b", [unit.unit for unit in units])
    assert store.account() == account, "a session gave back what is another's"
    store.take_back("a", [units[1].unit, 999])
    store.session_gone("b")
    assert store.account().total == 102 * MIB == driver.created


def test_without_room_nothing_changes(store):
    """Neither a lane nor a session gets a part of what it asked for."""
    layout, before = store.create_lane(1, 400 * MIB), store.account()
    for ask in (
        lambda: store.create_lane(2, 200 * MIB),
        lambda: store.resize_lane(1, 600 * MIB),
        lambda: store.give_private("a", [64 * MIB, 64 * MIB]),
    ):
        with pytest.raises(OutOfDeviceMemory):
            ask()
        assert store.account() == before
        store.validate()
    assert store.layout(1) == layout
    with pytest.raises(InvalidMapping):
        store.layout(2)


def test_units_that_a_session_keeps_are_private_and_the_rest_of_its_lane_is_free(store):
    """Each as soon as those release it who had a turn in the lane before."""
    store.create_lane(1, 100 * MIB)
    for session in ("a", "b"):
        store.share_lane(1, session)
    units = [unit.unit for unit in store.layout(1).units]
    with pytest.raises(InvalidMapping, match="not of a lane of its own"):
        store.keep("a", units[:2])
    store.begin_turn(1, "a", "user")
    for wrong in ("b", units[:2]), ("a", [units[0], 999]):
        with pytest.raises(InvalidMapping):
            store.keep(*wrong)
    store.keep("a", units[:2])
    store.validate()
    assert store.account().lanes == {1: 0}
    assert store.account().private == {"a": 4 * MIB}
    assert store.account().releasing == 96 * MIB
    store.end_turn(1, "a")
    for session in ("a", "b"):
        store.take_back(session, units[2:])
    assert store.account().total == 4 * MIB
    store.resize_lane(1, 100 * MIB)
    assert not {unit.unit for unit in store.layout(1).units} & set(units)
    store.session_gone("a")
    store.validate()
    assert store.account().private == {}
    assert store.account().releasing == 4 * MIB, "b has them still"
    store.session_gone("b")
    assert store.account().total == 100 * MIB


def stock(store, lane, size):
    """Create the units that a lane lacks; return how many."""
    units = store.order(store.missing(lane, size))
    store.validate()
    store.make(units)
    store.stock(lane, units)
    return len(units)


def test_ordered_units_are_counted_until_they_are_cancelled(store, driver):
    """Made or not; and nothing is ordered that is no whole number of pages, or less than none."""
    for sizes in [-2 * MIB], [0], [2 * MIB, MIB]:
        with pytest.raises(InvalidMapping):
            store.order(sizes)
    units = store.order([2 * MIB, 2 * MIB])
    assert (store.used, driver.created) == (4 * MIB, 0)
    store.make(units[:1])
    store.cancel(units)
    store.validate()
    assert (store.used, driver.created) == (0, 0)


def test_units_can_be_created_before_their_lane_needs_them(store, driver):
    """The lane takes those it has use for, the others are freed."""
    assert stock(store, 1, 20 * MIB) == 12
    assert store.missing(1, 100 * MIB) == [2 * MIB] * 38
    assert stock(store, 1, 100 * MIB) == 38
    assert store.account().stock == driver.created == 100 * MIB
    store.validate()
    store.create_lane(1, 90 * MIB)
    assert store.account().lanes == {1: 90 * MIB}
    assert driver.created == 90 * MIB
    assert stock(store, 1, 120 * MIB) == 15
    before = {unit.unit for unit in store.layout(1).units}
    assert before < {unit.unit for unit in store.resize_lane(1, 120 * MIB).units}
    assert store.account().total == store.account().lanes[1] == driver.created == 120 * MIB


def test_what_was_created_for_a_lane_in_vain_is_freed(store, driver):
    """Where there is no room for all of it, and where the lane goes."""
    store.give_private("a", [64 * MIB] * 7)
    stock(store, 1, 30 * MIB)
    with pytest.raises(OutOfDeviceMemory):
        stock(store, 1, 100 * MIB)
    with pytest.raises(OutOfDeviceMemory):
        store.create_lane(1, 100 * MIB)
    assert store.account().stock == driver.created - 7 * 64 * MIB == 30 * MIB
    store.drop_stock(1)
    assert store.account().total == driver.created == 7 * 64 * MIB
    store.create_lane(1, 30 * MIB)
    stock(store, 1, 40 * MIB)
    store.remove_lane(1)
    assert store.account().total == driver.created == 7 * 64 * MIB


def test_a_lane_that_changes_keeps_the_units_it_can(store):
    """Growing creates only what is missing; the same size changes nothing."""
    before = store.create_lane(1, 64 * MIB)
    assert store.resize_lane(1, 63 * MIB) == before
    after = store.resize_lane(1, 80 * MIB)
    assert after != before
    assert {unit.unit for unit in before.units} < {unit.unit for unit in after.units}
    smaller = store.resize_lane(1, 30 * MIB)
    assert {unit.unit for unit in smaller.units} < {unit.unit for unit in after.units}
    assert store.account().total == 30 * MIB


def test_a_lanes_units_leave_when_the_last_session_lets_go(store):
    """Until then they are counted, apart from every lane."""
    layout = store.create_lane(1, 64 * MIB)
    for session in ("a", "b"):
        assert store.share_lane(1, session) == list(layout.units)
        assert store.share_lane(1, session) == []
    store.resize_lane(1, 40 * MIB)
    assert store.account().releasing == 24 * MIB
    units = [unit.unit for unit in layout.units]
    store.take_back("a", units)
    assert store.account().releasing == 24 * MIB
    store.remove_lane(1)
    assert store.account().total == store.account().releasing == 64 * MIB
    store.session_gone("b")
    assert store.account().total == 0


def test_a_dead_sessions_turn_is_over(store):
    """Its lane can change again, and the next user has to scrub it."""
    store.create_lane(1, 64 * MIB)
    store.begin_turn(1, "a", "ada")
    store.session_gone("a")
    store.resize_lane(1, 80 * MIB)
    assert store.begin_turn(1, "b", "bob") is True
    assert store.begin_turn(1, "b", "bob") is False, "its own turn goes on"


def test_new_memory_of_an_unclean_driver_is_scrubbed_first():
    """Also by the user who had the lane before it grew. CUDA promises nothing about new memory."""
    store = LaneStore(FaultyDriver())
    store.create_lane(1, 64 * MIB)
    for size, must_scrub in ((None, True), (None, False), (80 * MIB, True), (64 * MIB, False)):
        if size:
            store.resize_lane(1, size)
        assert store.begin_turn(1, "a", "ada") is must_scrub
        store.end_turn(1, "a")
    store.remove_lane(1)


def test_descriptors_come_in_batches_and_are_closed(store):
    """As many as one message carries, none inherited; they are made once, and stay as long as the store's handle."""
    without = open_descriptors()
    layout = store.create_lane(1, 500 * MIB)
    private = store.give_private("a", [2 * MIB])
    before = open_descriptors()
    sizes, seen = [], []
    for units, descriptors in store.exported([*layout.units, *private]):
        assert len(units) == len(descriptors) <= MAX_DESCRIPTORS
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        sizes += [os.fstat(descriptor).st_size for descriptor in descriptors]
        seen += units
    assert open_descriptors() == before
    again = [each for _, descriptors in store.exported(layout.units) for each in descriptors]
    assert len(set(again)) == len(layout.units)
    assert open_descriptors() == before
    store.remove_lane(1)
    store.confirm("a", [unit.unit for unit in private])
    assert open_descriptors() == without
    assert sizes == [unit.size for unit in seen]
    assert seen == [*layout.units, *private]


def test_confirmed_private_memory_dies_with_its_session(store, driver):
    """The store keeps no handle of it, but counts it until the session lets go."""
    (unit,) = store.give_private("a", [16 * MIB])
    store.confirm("b", [unit.unit])
    assert driver.created == 16 * MIB, "another session's word was taken"
    store.confirm("a", [unit.unit])
    assert driver.created == 0
    assert store.account().private == {"a": 16 * MIB}
    with pytest.raises(InvalidMapping):
        next(store.exported([unit]))
    store.take_back("a", [unit.unit])
    assert store.account().total == 0


def test_a_scrub_that_was_not_done_is_still_due(store):
    """Whoever was to do it may end before, or fail to take the lane."""
    store.create_lane(1, 64 * MIB)
    assert not store.begin_turn(1, "a", "ada")
    store.end_turn(1, "a")
    assert store.begin_turn(1, "g", "grace")
    store.session_gone("g")
    assert store.begin_turn(1, "h", "grace")
    store.end_turn(1, "h", unused=True)
    assert store.begin_turn(1, "i", "grace")
    store.end_turn(1, "i")
    assert not store.begin_turn(1, "j", "grace")
    store.end_turn(1, "j")
