"""What survives a hand-over: pages that become private, or are kept, and those that show the lane again."""

from __future__ import annotations

import pytest

from sharedkernel.device_memory import generations
from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, InvalidMapping
from tests.device_memory import traces
from tests.device_memory.support import LANE, WARM_UP, Replay


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0"])
def test_a_static_loop_has_one_survivor_page_at_most_and_none_later(make_session, version):
    """After the warm-up: one page at the first hand-over, none after it, and no callback of torch's."""
    session = make_session("a", version=version)
    replay = Replay(session, traces.record(traces.STATIC, 8))
    session.begin()
    assert replay.iterate()
    session.memory.next_iteration()
    assert replay.iterate()
    session.memory.next_iteration()
    assert session.supplier.moved(), "nothing was born in the warm-up"
    pages, callbacks = [], []
    while replay.iterate():
        session.hand_over()
        pages.append(len(session.supplier.moved()))
        callbacks.append(session.torch.num_callbacks)
        session.begin()
    assert len(pages) == 6
    assert pages[0] <= 1
    assert not any(pages[1:]), pages
    assert len(set(callbacks)) == 1, callbacks


def test_varying_shapes_keep_little_of_the_lane(make_session):
    """At most 6 MiB become private in 20 iterations."""
    session = make_session("a")
    replay = Replay(session, traces.record(traces.VARYING, 22))
    session.begin()
    for _ in range(WARM_UP):
        assert replay.iterate()
        session.memory.next_iteration()
    session.supplier.moved()
    kept = num = 0
    while replay.iterate():
        session.hand_over()
        kept += sum(session.supplier.moved())
        num += 1
        session.begin()
    assert num == 20
    assert kept <= 6 * MIB


@pytest.mark.parametrize("at", ["boundary", "yield", "cell"])
def test_on_a_full_device_a_session_keeps_the_pages_of_the_lane_in_which_something_lives(store, make_session, at):
    """What is there could be copied nowhere; the rest of the lane is free, and the next turns have one as before."""
    a, b = make_session("a", is_warm=True), make_session("b", is_warm=True)
    a.begin()
    kept = a.allocate(30 * MIB, 40)
    a.allocate(1000, 50)
    a.supplier.is_device_full = True
    assert a.hand_over(at), "the lane is not kept"
    a.memory.leave_lane()
    a.validate()
    assert store.account().lanes == {LANE: 0}
    b.memory.leave_lane()  # as soon as it has its turn
    private = store.account().private
    assert 30 * MIB <= private["a"] == store.account().total - private.get("b", 0) < 64 * MIB
    a.supplier.is_device_full = False
    store.resize_lane(LANE, 96 * MIB)
    for session in (b, a, b):
        session.set_lane()
        session.begin()
        session.allocate(20 * MIB, 60)
        session.check_all()
        session.hand_over()
        session.check_all()
    a.free(kept)
    a.set_lane()
    a.begin_turn()
    a.hand_over()


def test_a_page_is_not_kept_that_the_executor_refuses(store, make_session):
    """Nothing has changed then, and the hand-over is tried again."""
    session = make_session("a", is_warm=True)
    session.begin()
    session.allocate(30 * MIB, 40)
    session.supplier.is_device_full = True
    store.end_turn(LANE, "a")
    with pytest.raises(InvalidMapping, match="not of a lane of its own"):
        session.memory.hand_over()
    assert session.memory.has_turn
    session.begin_turn()
    session.check_all()
    assert session.hand_over(), "the lane is not kept"
    session.memory.leave_lane()


def test_private_pages_beyond_the_limit_show_the_lane_again(make_session, store):
    """What lived once does not keep the lane's addresses private for good."""
    store.resize_lane(LANE, 256 * MIB)
    session = make_session("a", is_warm=True)
    for size in (100 * MIB, 40 * MIB):
        session.begin()
        block = session.allocate(size, 3)
        session.hand_over()
        session.begin()
        session.free(block)
        session.hand_over()
        assert session.sticky_bytes <= generations.STICKY
        session.validate()


def test_without_room_for_survivors_the_lane_stays_with_its_session(store, make_session):
    """The hand-over did not happen; it does once there is room."""
    session = make_session("a", is_warm=True)
    session.begin()
    block = session.allocate(3 * MIB, 5)
    session.supplier.allowance = MIB
    with pytest.raises(DeviceMemoryError, match="no room"):
        session.memory.hand_over()
    assert session.torch.under_way[1:], "the iteration does not go on in the lane"
    session.check(block)
    session.validate()
    session.supplier.allowance = None
    session.hand_over()
    assert len(session.supplier.moved()) == 2


def test_a_warm_up_without_room_goes_on(make_session):
    """Its survivors are taken out at a later boundary."""
    session = make_session("a")
    session.begin()
    session.allocate(3 * MIB, 5)
    session.supplier.allowance = 0
    session.memory.next_iteration()
    with pytest.raises(DeviceMemoryError, match="no room"):
        session.memory.next_iteration()
    session.allocate(4 * MIB, 6)
    session.supplier.allowance = None
    session.memory.next_iteration()
    assert session.supplier.moved()
    session.hand_over()
