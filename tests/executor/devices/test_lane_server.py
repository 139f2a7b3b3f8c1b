"""Units of lanes and of sessions: others are served while the driver creates them."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.device_memory.driver import MIB, Handle
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.errors import Refused
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.processes.process import SessionHandle
from tests.device_memory.memfd import MemfdDriver
from tests.executor.devices.support import make_process


class GatedDriver(MemfdDriver):
    """Creates nothing before it may, as a driver whose calls take long."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = threading.Event(), threading.Event()

    def create(self, size: int) -> Handle:
        """Wait for the gate."""
        self.asked.set()
        assert self.gate.wait(60)
        return super().create(size)


@pytest.fixture
def driver() -> GatedDriver:
    return GatedDriver()


@pytest.fixture
def desk(driver: GatedDriver) -> LaneServer:
    return LaneServer(LaneStore(driver, capacity=512 * MIB))


def ask(desk: LaneServer, process: SessionHandle, message: protocol.Message) -> Any:
    """Return what a session is answered."""
    return desk.handlers()[type(message)](process, message, [])


async def test_the_event_loop_goes_on_while_a_lane_is_made(driver: GatedDriver, desk: LaneServer) -> None:
    """The driver has not created one unit yet, and the loop runs; the lane is made of these then."""
    process = make_process()
    assert desk.lacks_units(process, 1, 30 * MIB)
    assert desk.lacks_units(process, 1, 400 * MIB)
    preparing = asyncio.create_task(desk.prepare(1, 400 * MIB))
    await asyncio.to_thread(driver.asked.wait, 60)
    assert (desk.used_bytes, driver.created) == (400 * MIB, 0), "it is counted before it is there"
    driver.gate.set()
    await preparing
    assert not desk.lacks_units(process, 1, 400 * MIB)
    assert desk.granted(process, 1, 400 * MIB)
    desk.give_up(1)
    assert desk.used_bytes == driver.created == 400 * MIB
    assert not desk.lacks_units(process, 1, 380 * MIB), "it does not shrink for so little"
    desk.removed(1)
    assert desk.used_bytes == driver.created == 0


async def test_units_that_come_after_their_session_has_ended_are_freed(driver: GatedDriver, desk: LaneServer) -> None:
    """Nobody would ever release them."""
    process = make_process()
    asking = asyncio.ensure_future(ask(desk, process, protocol.WantPrivateUnits(request=1, sizes=[2 * MIB])))
    await asyncio.to_thread(driver.asked.wait, 60)
    desk.ended(process)
    driver.gate.set()
    with pytest.raises(Refused, match="has ended"):
        await asking
    assert desk.used_bytes == driver.created == 0


async def test_a_large_lane_is_made_once_and_leaves_nothing_if_it_is_not_needed(
    driver: GatedDriver, desk: LaneServer
) -> None:
    """Of two that prepare it the second waits for the first. One for which there is no room leaves nothing either."""
    driver.gate.set()
    await asyncio.gather(desk.prepare(1, 400 * MIB), desk.prepare(1, 400 * MIB))
    assert desk.used_bytes == driver.created == 400 * MIB
    desk.give_up(1)
    assert desk.used_bytes == driver.created == 0
    await desk.prepare(1, 600 * MIB)
    assert not desk.granted(make_process(), 1, 600 * MIB)
    desk.give_up(1)
    assert desk.used_bytes == driver.created == 0


async def test_a_lane_whose_pages_a_session_has_kept_is_nobodys_until_there_is_room_for_another() -> None:
    """On a full device; others do without, and have a lane again once there is room."""
    desk = LaneServer(LaneStore(MemfdDriver(), capacity=64 * MIB))
    first, second = make_process("first"), make_process("second")
    assert desk.granted(first, 1, 48 * MIB)
    taken = ask(desk, first, protocol.TakeLane(request=1)).message
    units = [unit for unit, _ in taken.units]
    for descriptor in ask(desk, first, protocol.FetchUnits(request=2, units=units)).descriptors:
        os.close(descriptor)
    ask(desk, first, protocol.KeepUnits(request=3, units=units[:12]))
    ask(desk, first, protocol.LaneHandedOver(request=4))
    ask(desk, first, protocol.UnitsLetGo(request=5, units=units[12:]))
    assert desk.used_bytes == 24 * MIB
    assert not desk.granted(second, 1, 48 * MIB)
    with pytest.raises(Refused, match="no lane now"):
        ask(desk, second, protocol.TakeLane(request=6))
    desk.ended(first)
    assert desk.granted(second, 1, 48 * MIB)
    desk.removed(1)
    assert desk.used_bytes == 0


async def test_a_request_for_memory_that_is_repeated_has_the_same_units(driver: GatedDriver, desk: LaneServer) -> None:
    """Its first answer was lost with the connection; two of them would leave memory that nobody uses."""
    driver.gate.set()
    process = make_process()

    async def want(number: int) -> list[tuple[int, int]]:
        answer = await ask(desk, process, protocol.WantPrivateUnits(request=number, sizes=[2 * MIB, 4 * MIB]))
        for descriptor in answer.descriptors:
            os.close(descriptor)
        return list(answer.message.units)

    first = await want(1)
    assert await want(1) == first
    assert (await asyncio.gather(want(1), want(1))) == [first, first]
    assert desk.used_bytes == driver.created == 6 * MIB
    ask(desk, process, protocol.UnitsImported(request=2, units=[unit for unit, _ in first]))
    other = await want(3)
    assert not set(other) & set(first)
    ask(desk, process, protocol.UnitsLetGo(request=4, units=[unit for unit, _ in first + other]))
    assert desk.used_bytes == 0
