"""A session's memory in its lane: what survives, what is seen, what is counted."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, InvalidMapping, LaneOccupied
from sharedkernel.device_memory.mapper import SlotState
from tests.device_memory.faults import FaultyDriver
from tests.device_memory.pool_model import OutOfMemoryError
from tests.device_memory.support import LANE, tensor_at, warm_up

#: small blocks and a large one, in bytes
ALL_OF_A_LANE = (*[MIB] * 8, 60 * MIB)


def test_another_users_bytes_are_not_found(make_session):
    """A lane that passes to another user has nothing of what was written there."""
    a, b, c = (make_session(name, is_warm=True) for name in "abc")
    for session, other in ((a, b), (b, c)):
        session.begin()
        blocks = [session.allocate(size, 171) for size in ALL_OF_A_LANE]
        kept = blocks.pop(3)
        for block in blocks:
            session.free(block)
        session.hand_over()
        other.begin()
        for size in ALL_OF_A_LANE:
            block = other.torch.malloc(size)
            assert not tensor_at(block.address, size).eq(171).any()
            other.torch.free(block)
        other.hand_over()
        session.check(kept)


def test_another_users_bytes_are_not_found_behind_a_private_page(make_session):
    """Who scrubs the lane scrubs also what its own private pages hide: a session of the same user sees it next."""
    a, b, c = make_session("a", "ada"), make_session("b", "bob"), make_session("c", "bob")
    # much is born in b's warm-up, so that it is retired, and shows no lane beside the steady pool
    b.begin()
    b.allocate(14 * MIB, 8)
    b.hand_over()
    for session in (a, b, c):
        warm_up(session)
    b.begin()
    kept = [b.allocate(MIB, 7), b.allocate(40 * MIB, 7)]
    b.hand_over()
    a.begin()
    for block in map(a.torch.malloc, ALL_OF_A_LANE):
        tensor_at(block.address, block.size).fill_(171)
    a.hand_over()
    b.begin_turn()
    b.hand_over()
    c.begin()
    for block in map(c.torch.malloc, ALL_OF_A_LANE):
        assert not tensor_at(block.address, block.size).eq(171).any()
    assert len(kept) == 2


def test_an_iteration_can_be_parked_in_its_middle(make_session):
    """Its pages are private until it ends, and then show the lane again."""
    a, b = make_session("a", is_warm=True), make_session("b", is_warm=True)
    a.begin()
    activations = [a.allocate(size, 40 + number) for number, size in enumerate((512, MIB, 3 * MIB, 12 * MIB))]
    a.hand_over("yield")
    assert len(a.supplier.moved()) > 5
    assert not a.torch.under_way[1:], "a parked session allocates from the lane"
    b.begin()
    b.allocate(60 * MIB, 200)
    b.hand_over()
    a.begin_turn()
    a.check_all()
    activations.append(a.allocate(2 * MIB, 50))
    for block in activations:
        a.free(block)
    a.hand_over()
    assert a.sticky_bytes == 0
    a.validate()


def test_a_hand_over_is_whole_or_has_not_happened_whatever_call_of_the_driver_fails(make_session):
    """Once what lives is out of the lane it is everybody's, though what nothing lives in could not be given back."""
    driver, outcomes = FaultyDriver(), set()
    session = make_session("a", driver=driver, check_lanes=True, is_warm=True)
    for fail_at in itertools.count():
        session.begin()
        block = session.allocate(12 * MIB, 40)
        session.hand_over("yield")
        session.begin_turn()
        session.free(block)
        session.allocate(MIB, fail_at % 250)
        driver.fail_at = fail_at
        try:
            session.memory.hand_over()
        except DeviceMemoryError:
            assert session.memory.has_turn
            session.memory.hand_over()
            outcomes.add("not yet")
        else:
            outcomes.add("handed over")
        is_over, driver.fail_at = driver.fail_at is not None, None
        assert not session.memory.has_turn
        session.store.end_turn(LANE, "a")
        session.check_nothing_lives_in_lane()
        session.check_all()
        session.arena.validate()
        if is_over:
            break
    assert outcomes == {"not yet", "handed over"}
    session.begin_turn()
    session.hand_over()
    session.validate()


@pytest.mark.parametrize("size", [48 * MIB, 128 * MIB])
def test_a_parked_iteration_goes_on_in_a_lane_that_has_changed(store, make_session, size):
    """Its blocks are where they were; what it allocates from now on is in the new lane."""
    session = make_session("a", is_warm=True)
    session.begin()
    block = session.allocate(12 * MIB, 5)
    session.hand_over("yield")
    store.resize_lane(LANE, size)
    session.set_lane()
    session.begin()
    more = session.allocate(20 * MIB, 6)
    for slot in session.arena.slots_within(more.address, more.size):
        assert slot.state is SlotState.LANE
    session.check(block)
    session.free(block)
    session.free(more)
    session.hand_over()
    assert session.memory.figures().private <= 2 * MIB


def test_a_lane_grows_shrinks_and_moves_under_survivors(store, make_session):
    """Only while it is empty; the blocks of a session stay where they are."""
    session = make_session("a", is_warm=True)
    blocks = []
    for size in (200 * MIB, 48 * MIB, 48 * MIB):
        session.begin()
        blocks.append(session.allocate(5 * MIB, 10 + len(blocks)))
        with pytest.raises(LaneOccupied):
            store.resize_lane(LANE, size)
        with pytest.raises(LaneOccupied):
            store.remove_lane(LANE)
        with pytest.raises(InvalidMapping):
            session.set_lane()
        session.hand_over()
        store.resize_lane(LANE, size)
        session.set_lane()
        session.check_all()
        session.validate()
        account = store.account()
        assert account.releasing == 0, "the session kept units that the lane has no more"
        assert account.total == account.lanes[LANE] + account.private["a"]
    store.create_lane(2, 30 * MIB)
    session.set_lane(2)
    session.begin(2)
    session.allocate(5 * MIB, 77)
    session.hand_over(lane=2)
    store.remove_lane(2)
    assert store.account().releasing > 0, "the session has not released the lane"
    session.memory.leave_lane()
    assert store.account().releasing == 0


@pytest.mark.parametrize("cause", [DeviceMemoryError("held by others."), KeyboardInterrupt()])
def test_growth_that_is_refused_or_interrupted_leaves_torch_as_it_was(make_session, cause):
    """Torch raises its error, or the interrupt comes in its place; the next allocation works."""
    session = make_session("a")
    original = session.supplier.private_units

    def refuse(sizes, *, mid_iteration):
        assert mid_iteration
        raise cause

    session.supplier.private_units = refuse
    with pytest.raises(KeyboardInterrupt if isinstance(cause, KeyboardInterrupt) else OutOfMemoryError):
        session.torch.malloc(30 * MIB)
    session.supplier.private_units = original
    session.allocate(30 * MIB, 4)


def test_two_threads_grow_at_once(make_session):
    """Neither waits for the other, since nothing is held while units are waited for."""
    session = make_session("a")
    both, original = threading.Barrier(2, timeout=60), session.supplier.private_units

    def wait_for_the_other(sizes, *, mid_iteration):
        both.wait()
        return original(sizes, mid_iteration=mid_iteration)

    session.supplier.private_units = wait_for_the_other
    with ThreadPoolExecutor(2) as pool:
        pool.map(session.allocate, [30 * MIB] * 2, [1, 2])
    session.supplier.private_units = original
    assert len(session.written) == 2


def test_emptying_the_cache_gives_back_what_is_dead(store, make_session):
    """Whole pages in which nothing lives go, also beside what lives."""
    session = make_session("a")
    kept = session.allocate(3 * MIB, 1)
    for block in [session.allocate(50 * MIB, 2), session.allocate(10 * MIB, 3)]:
        session.free(block)
    assert store.account().private["a"] >= 70 * MIB
    session.memory.trim()
    assert store.account().private["a"] <= 16 * MIB, "more than the unit that has the block is left"
    session.check(kept)
    session.free(kept)
    session.memory.trim()
    session.allocate(50 * MIB, 2)
    session.validate()


def test_a_graph_under_capture_postpones_the_hand_over(make_session):
    """Waiting for the device would break the capture."""
    session = make_session("a", is_warm=True)
    session.begin()
    session.allocate(MIB, 1)
    session.torch.is_capturing = True
    calls = len(session.torch.calls)
    with pytest.raises(DeviceMemoryError, match="once the CUDA graph is captured"):
        session.memory.hand_over()
    session.memory.next_iteration()
    session.memory.trim()
    assert session.torch.calls[calls:] == []
    session.torch.is_capturing = False
    session.hand_over()


def test_a_pool_of_the_users_is_used_as_it_was_meant(make_session):
    """An iteration that begins within it stays out of the lane."""
    session = make_session("a")
    session.memory._pools.watch_user_pools()
    warm_up(session)
    session.begin_turn()
    pool = session.torch.cuda.MemPool()
    with session.torch.cuda.use_mem_pool(pool):
        session.memory.begin_iteration()
        session.memory.next_iteration()
        block = session.torch.malloc(MIB)
        assert block.pool.id == pool.id
        session.memory.trim()
        assert session.torch.under_way[-1] == pool.id
    session.memory.begin_iteration()
    assert session.torch.malloc(MIB).pool.id not in (pool.id, block.pool.id)
    session.torch.free(block)


def test_a_session_that_is_turned_off_stays_out_of_the_lane(make_session):
    """It computes in private memory, and says why."""
    session = make_session("a")
    session.memory.turn_off("its user's threads use the device")
    session.memory.turn_off("another reason")
    session.begin()
    block = session.allocate(MIB, 1)
    (slot,) = session.arena.slots_within(block.address, block.size)
    assert slot.state is SlotState.PRIVATE
    assert session.memory.off_reason == "its user's threads use the device"
    session.hand_over()


def test_an_iteration_needs_a_turn(make_session):
    """Nothing is allocated from a lane that is others' now."""
    session = make_session("a")
    with pytest.raises(InvalidMapping):
        session.memory.begin_iteration()
    warm_up(session)
    with pytest.raises(InvalidMapping):
        session.memory.begin_iteration()
