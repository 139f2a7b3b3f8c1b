"""Units of lanes and of sessions: others are served while the driver creates them."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from sharedkernel import protocol
from sharedkernel.device_memory.driver import MIB, Handle
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.errors import Refused
from sharedkernel.executor.devices.lane_server import LaneServer
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


async def test_the_event_loop_goes_on_while_a_lane_is_made() -> None:
    """The driver has not created one unit yet, and the loop runs; the lane is made of these then."""
    driver = GatedDriver()
    desk = LaneServer(LaneStore(driver, capacity=512 * MIB))
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


async def test_two_that_prepare_one_lane_create_its_units_once() -> None:
    """The second waits for the first."""
    driver = MemfdDriver()
    desk = LaneServer(LaneStore(driver, capacity=512 * MIB))
    await asyncio.gather(desk.prepare(1, 400 * MIB), desk.prepare(1, 400 * MIB))
    assert desk.used_bytes == driver.created == 400 * MIB
    desk.give_up(1)


async def test_units_that_come_after_their_session_has_ended_are_freed() -> None:
    """Nobody would ever release them."""
    driver = GatedDriver()
    desk = LaneServer(LaneStore(driver, capacity=64 * MIB))
    process = make_process()
    asking = asyncio.ensure_future(
        desk.handlers()[protocol.WantPrivateUnits](process, protocol.WantPrivateUnits(request=1, sizes=[2 * MIB]), [])
    )
    await asyncio.to_thread(driver.asked.wait, 60)
    desk.ended(process)
    driver.gate.set()
    with pytest.raises(Refused, match="has ended"):
        await asking
    assert desk.used_bytes == driver.created == 0


async def test_a_large_lane_that_is_not_needed_after_all_leaves_nothing() -> None:
    """Nor does one for which there is no room: its session does without."""
    driver = MemfdDriver()
    desk = LaneServer(LaneStore(driver, capacity=512 * MIB))
    await desk.prepare(1, 400 * MIB)
    desk.give_up(1)
    assert desk.used_bytes == driver.created == 0
    process = make_process()
    await desk.prepare(1, 600 * MIB)
    assert not desk.granted(process, 1, 600 * MIB)
    desk.give_up(1)
    assert desk.used_bytes == driver.created == 0


async def test_a_lane_whose_pages_a_session_has_kept_is_nobodys_until_there_is_room_for_another() -> None:
    """On a full device; others do without, and have a lane again once there is room."""
    desk = LaneServer(LaneStore(MemfdDriver(), capacity=64 * MIB))
    handlers = desk.handlers()
    first, second = make_process("first"), make_process("second")
    assert desk.granted(first, 1, 48 * MIB)
    taken = handlers[protocol.TakeLane](first, protocol.TakeLane(request=1), []).message
    units = [unit for unit, _ in taken.units]
    fetched = handlers[protocol.FetchUnits](first, protocol.FetchUnits(request=2, units=units), [])
    for descriptor in fetched.descriptors:
        os.close(descriptor)
    handlers[protocol.KeepUnits](first, protocol.KeepUnits(request=3, units=units[:12]), [])
    handlers[protocol.LaneHandedOver](first, protocol.LaneHandedOver(request=4), [])
    handlers[protocol.UnitsLetGo](first, protocol.UnitsLetGo(request=5, units=units[12:]), [])
    assert desk.used_bytes == 24 * MIB
    assert not desk.granted(second, 1, 48 * MIB)
    with pytest.raises(Refused, match="no lane now"):
        handlers[protocol.TakeLane](second, protocol.TakeLane(request=6), [])
    desk.ended(first)
    assert desk.granted(second, 1, 48 * MIB)
    desk.removed(1)
    assert desk.used_bytes == 0


async def test_a_request_for_memory_that_is_repeated_has_the_same_units() -> None:
    """Its first answer was lost with the connection; two of them would leave memory that nobody uses."""
    driver = MemfdDriver()
    desk = LaneServer(LaneStore(driver, capacity=64 * MIB))
    handlers = desk.handlers()
    process = make_process()

    async def ask(number: int) -> list[tuple[int, int]]:
        message = protocol.WantPrivateUnits(request=number, sizes=[2 * MIB, 4 * MIB])
        answer = await handlers[protocol.WantPrivateUnits](process, message, [])
        for descriptor in answer.descriptors:
            os.close(descriptor)
        return list(answer.message.units)

    first = await ask(1)
    assert await ask(1) == first
    assert (await asyncio.gather(ask(1), ask(1))) == [first, first]
    assert desk.used_bytes == driver.created == 6 * MIB
    handlers[protocol.UnitsImported](process, protocol.UnitsImported(request=2, units=[u for u, _ in first]), [])
    other = await ask(3)
    assert not set(other) & set(first)
    handlers[protocol.UnitsLetGo](process, protocol.UnitsLetGo(request=4, units=[u for u, _ in first + other]), [])
    assert desk.used_bytes == 0
