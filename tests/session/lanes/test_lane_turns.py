"""A session's turns in a lane, with real descriptors over real sockets, on the memory-file driver.

The executor's loop runs in a thread of its own; sessions are played here, each with its own connection to it, and a
model of torch's allocator.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.layout import lane_bytes
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.errors import ProtocolError, Refused
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.processes.fd_server import FdServer
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.paths import DESCRIPTOR_SOCKET
from sharedkernel.protocol import Limits
from sharedkernel.session.lanes.lane_turns import LaneTurns, UnitFetcher
from sharedkernel.system.deferred_signals import signals_held
from tests.device_memory.faults import Fault, FaultyDriver
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import Tenant
from tests.executor.devices.support import make_process
from tests.session.harness import wait_until

CAPACITY = 512 * MIB
LANE = 7


class Desk:
    """The executor's side."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.driver = FaultyDriver()
        self.driver.is_new_memory_clean = True
        self.store = LaneStore(self.driver, capacity=CAPACITY)
        #: seconds on the executor's clock
        self.time = 0.0
        self.desk = LaneServer(self.store, lambda: self.time)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._channels: list[FdServer] = []

    def call(self, function: Callable[[], Any]) -> Any:
        """Call *function* on the executor's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def serve(self, name: str, user: str) -> SessionHandle:
        """Listen for one session, which is this process."""
        path = self._directory / name
        path.mkdir()

        def listen() -> SessionHandle:
            process = make_process(name, limits=Limits(user=user))
            channel = FdServer(path / DESCRIPTOR_SOCKET, lambda pid: process, self.desk.handlers())
            channel.start()
            self._channels.append(channel)
            return process

        process: SessionHandle = self.call(listen)
        return process

    def grant(self, session: Session, size: int, lane: int = LANE) -> None:
        self.call(lambda: self.desk.granted(session.process, lane, size))
        session.cuda.turn_began()

    def release(self, session: Session, at: Any = "boundary") -> None:
        assert session.cuda.hand_over(at)
        session.tenant.check_nothing_lives_in_lane()
        self.store.validate()

    def close(self) -> None:
        self.call(lambda: [channel.close() for channel in self._channels])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Session:
    """One session's memory."""

    def __init__(
        self, desk: Desk, directory: Path, name: str, user: str = "ada", driver: MemfdDriver | None = None
    ) -> None:
        self.process = desk.serve(name, user)
        self.client = DescriptorClient(str(directory / name / "executor.sock"))
        supplier = UnitFetcher(self.client)
        self.tenant = Tenant(supplier, name, driver=driver)
        self.cuda = LaneTurns(self.tenant.memory, supplier, self.client)

    def settle(self) -> None:
        """Return once the executor has heard all that it was told."""
        self.client.request(protocol.UnitsLetGo(units=[]))

    def iterate(self, byte: int, *, keep: bool = False) -> Any:
        """Allocate and free as an iteration does; what is kept survives it."""
        blocks = [self.tenant.allocate(size, byte) for size in (MIB // 4, 3 * MIB, 12 * MIB)]
        kept = blocks.pop() if keep else None
        for block in blocks:
            self.tenant.free(block)
        return kept


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_another_users_bytes_are_written_over(desk: Desk, tmp_path: Path) -> None:
    """Within one user's sessions the lane passes as it is."""
    ada, grace = Session(desk, tmp_path, "p", "ada"), Session(desk, tmp_path, "q", "grace")
    desk.grant(ada, 32 * MIB)
    for _ in range(3):
        ada.iterate(0x5A)
        ada.cuda.boundary_passed()
    ada.iterate(0x5A)
    desk.release(ada)
    desk.grant(grace, 32 * MIB)
    seen: set[int] = set()
    blocks = [grace.tenant.torch.malloc(size) for size in (MIB // 4, 3 * MIB, 12 * MIB)]
    for block in blocks:
        seen |= set(grace.tenant._places(block).tolist())
    assert 0x5A not in seen


def test_at_a_cells_end_the_lane_is_left(desk: Desk, tmp_path: Path) -> None:
    """So a lane that goes needs no idle session to let go of it."""
    session = Session(desk, tmp_path, "p")
    desk.grant(session, 32 * MIB)
    session.iterate(1)
    desk.release(session, "cell")
    assert session.cuda.look().lane == 0
    other = Session(desk, tmp_path, "q")
    desk.call(lambda: desk.desk.removed(LANE))
    desk.grant(other, 48 * MIB, lane=LANE + 1)
    session.settle()
    account = desk.store.account()
    assert account.lanes == {LANE + 1: lane_bytes(48 * MIB)}
    assert account.releasing == 0


@pytest.mark.parametrize("is_executors", [False, True], ids=["session", "executor"])
def test_a_lane_that_can_be_taken_only_in_part_is_left_as_a_whole(
    desk: Desk, tmp_path: Path, *, is_executors: bool
) -> None:
    """Whichever call of either side's driver fails: the lane's memory is free once the lane is gone."""
    number = 0
    has_failed = True
    # of a lane that is as it was the executor has all descriptors, and calls its driver for nothing
    size = 40 * MIB if is_executors else 8 * MIB
    while has_failed:
        driver = desk.driver if is_executors else FaultyDriver()
        session = Session(desk, tmp_path, f"p{number}", driver=None if is_executors else driver)
        desk.grant(session, 8 * MIB, lane=number + 1)
        session.iterate(1)
        desk.release(session, "cell")
        driver.fail_at = number
        try:
            desk.grant(session, size, lane=number + 1)
        except Fault:  # the gate leaves lanes alone then; the next turn is without
            session.tenant.memory.turn_off("the device failed.")
        has_failed, driver.fail_at = driver.fail_at is None, None
        session.cuda.hand_over("cell")
        desk.call(functools.partial(desk.desk.removed, number + 1))
        session.settle()
        account = desk.store.account()
        assert account.releasing == 0, f"call {number} failed"
        assert account.lanes == {}
        number += 1
    assert number > (4 if is_executors else 10)


def test_a_lane_shrinks_once_much_less_was_needed_for_some_seconds(desk: Desk, tmp_path: Path) -> None:
    """Each change costs a pool; needs that vary a little from turn to turn change nothing."""
    session = Session(desk, tmp_path, "p")
    layouts = set()
    for seconds, size in enumerate((110, 106, 96, 94, 86, 30, 100, 30)):
        desk.time = float(seconds)
        desk.grant(session, size * MIB)
        session.iterate(7)
        desk.release(session)
        layouts.add(desk.store.layout(LANE))
    assert len(layouts) == 1
    desk.time += 6
    desk.grant(session, 30 * MIB)
    desk.release(session)
    assert desk.store.account().lanes == {LANE: lane_bytes(30 * MIB)}


def test_a_lane_shrinks_at_once_where_the_device_is_nearly_full(desk: Desk, tmp_path: Path) -> None:
    """Others need what it does not."""
    session = Session(desk, tmp_path, "p")
    desk.grant(session, 96 * MIB)
    desk.release(session)
    desk.call(lambda: desk.store.give_private("hoarder", [64 * MIB] * 6))
    desk.grant(session, 90 * MIB)
    desk.release(session)
    assert desk.store.account().lanes == {LANE: lane_bytes(90 * MIB)}


@pytest.mark.heavy
def test_without_room_for_survivors_their_pages_are_kept(desk: Desk, tmp_path: Path) -> None:
    """The grant goes all the same, and the rest of the lane is free; the next turn has a lane again."""
    session = Session(desk, tmp_path, "p")
    desk.grant(session, 64 * MIB)
    kept = session.iterate(9, keep=True)
    left = CAPACITY - desk.store.account().total
    hoard = desk.call(lambda: desk.store.give_private("hoarder", [2 * MIB] * (left // (2 * MIB))))
    assert session.cuda.hand_over("boundary")
    assert (session.cuda.has_turn, session.cuda.look().lane) == (False, 0)
    session.tenant.check_all()
    wait_until(lambda: desk.store.account().total <= CAPACITY - 32 * MIB)
    assert desk.store.account().lanes == {LANE: 0}
    assert desk.store.account().private["p"] == session.cuda.private_bytes > 0
    desk.call(lambda: desk.store.take_back("hoarder", [unit.unit for unit in hoard]))
    desk.grant(session, 64 * MIB)
    assert session.cuda.look().lane == 64 * MIB
    session.iterate(5)
    desk.release(session)
    session.tenant.check(kept)


def test_an_interrupt_does_not_cut_a_hand_over_short_that_holds_signals(desk: Desk, tmp_path: Path) -> None:
    """At the end of a cell nothing may be left half done, although the hand-over waits for room."""
    session, other = Session(desk, tmp_path, "p"), Session(desk, tmp_path, "q")
    desk.grant(session, 32 * MIB)
    session.cuda.boundary_passed()
    session.iterate(1, keep=True)
    size = CAPACITY - desk.store.used - 4 * MIB
    filled = desk.call(lambda: desk.store.give_private(other.process.process, [2 * MIB] * (size // (2 * MIB))))

    def interrupt_and_make_room() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        desk.call(lambda: desk.store.take_back(other.process.process, [unit.unit for unit in filled]))

    ended = []

    @signals_held()
    def end_cell() -> None:
        threading.Timer(0.2, interrupt_and_make_room).start()
        desk.release(session, "cell")
        ended.append(session)

    with pytest.raises(KeyboardInterrupt):
        end_cell()
    assert ended
    session.tenant.check_all()


@pytest.mark.parametrize("is_off", [False, True])
def test_without_a_lane_iterations_use_memory_of_the_sessions_own(desk: Desk, tmp_path: Path, *, is_off: bool) -> None:
    """Where one cannot be made, and where an executor whose self-test failed gives none."""
    session = Session(desk, tmp_path, "p")
    desk.desk.is_off = is_off
    desk.grant(session, 32 * MIB if is_off else 2 * CAPACITY)
    assert session.cuda.look().lane == 0
    kept = session.iterate(3, keep=True)
    if not is_off:
        desk.release(session)
    assert not session.cuda.has_turn
    session.tenant.check(kept)
    account = desk.store.account()
    assert (account.lanes, account.private["p"] > 0) == ({}, True)


def test_a_lane_that_was_not_handed_over_is_nobody_elses(desk: Desk, tmp_path: Path) -> None:
    """A grant may be lost in the middle of an iteration (a stopped process): its bytes stay, and others do without."""
    stopped, other = Session(desk, tmp_path, "p"), Session(desk, tmp_path, "q")
    desk.grant(stopped, 64 * MIB)
    live = stopped.iterate(5, keep=True)
    desk.grant(other, 64 * MIB)
    assert other.cuda.look().lane == 0
    other.iterate(6, keep=True)
    desk.release(other)
    stopped.tenant.check(live)
    desk.release(stopped, "yield")
    desk.grant(other, 64 * MIB)
    assert other.cuda.look().lane == lane_bytes(64 * MIB)


def test_units_of_others_are_out_of_reach(desk: Desk, tmp_path: Path) -> None:
    """A session gets units of the lane it is granted, and no others."""
    session, other = Session(desk, tmp_path, "p"), Session(desk, tmp_path, "q", "grace")
    with pytest.raises(Refused):
        other.client.request(protocol.TakeLane())
    desk.grant(session, 32 * MIB)
    units = [unit.unit for unit in desk.store.layout(LANE).units][:1]
    with pytest.raises(Refused):
        other.client.request(protocol.FetchUnits(units=units))
    with pytest.raises(ProtocolError):
        session.client.request(protocol.FetchUnits(units=[10**6]))
