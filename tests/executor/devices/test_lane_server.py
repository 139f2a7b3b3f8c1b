"""Large lanes: others are served while their units are created."""

from __future__ import annotations

import asyncio
import os

import pytest

from sharedkernel import protocol
from sharedkernel.device_memory.drivers.base import MIB
from sharedkernel.device_memory.layout import plan_lane
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.errors import Refused
from sharedkernel.executor.devices.lane_server import LaneServer
from tests.device_memory.drivers.memfd import MemfdDriver
from tests.executor.devices.support import make_process


def test_the_event_loop_goes_on_while_a_large_lane_is_made() -> None:
    """It takes as many turns as there are units; the lane is made of these then."""

    async def scenario() -> None:
        driver = MemfdDriver()
        desk = LaneServer(LaneStore(driver, capacity=512 * MIB))
        process = make_process()
        assert not desk.is_costly(process, 1, 30 * MIB)
        assert desk.is_costly(process, 1, 400 * MIB)
        seen: list[int] = []

        async def watch() -> None:
            while True:
                seen.append(desk.used_bytes)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await desk.prepare(1, 400 * MIB)
        assert len(set(seen)) >= len(plan_lane(400 * MIB)) > 50
        watching.cancel()
        assert not desk.is_costly(process, 1, 400 * MIB)
        assert desk.granted(process, 1, 400 * MIB)
        desk.give_up(1)
        assert desk.used_bytes == driver.created == 400 * MIB
        desk.removed(1)
        assert desk.used_bytes == driver.created == 0

    asyncio.run(scenario())


def test_a_large_lane_that_is_not_needed_after_all_leaves_nothing() -> None:
    """Nor does one for which there is no room: its session does without."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_lane_whose_pages_a_session_has_kept_is_nobodys_until_there_is_room_for_another() -> None:
    """On a full device; others do without, and have a lane again once there is room."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_request_for_memory_that_is_repeated_has_the_same_units() -> None:
    """Its first answer was lost with the connection; two of them would leave memory that nobody uses."""

    async def scenario() -> None:
        driver = MemfdDriver()
        desk = LaneServer(LaneStore(driver, capacity=64 * MIB))
        handlers = desk.handlers()
        process = make_process()

        def ask(number: int) -> list[tuple[int, int]]:
            message = protocol.WantPrivateUnits(request=number, sizes=[2 * MIB, 4 * MIB])
            answer = handlers[protocol.WantPrivateUnits](process, message, [])
            for descriptor in answer.descriptors:
                os.close(descriptor)
            return list(answer.message.units)

        first = ask(1)
        assert ask(1) == first
        assert desk.used_bytes == driver.created == 6 * MIB
        handlers[protocol.UnitsImported](process, protocol.UnitsImported(request=2, units=[u for u, _ in first]), [])
        other = ask(3)
        assert not set(other) & set(first)
        handlers[protocol.UnitsLetGo](process, protocol.UnitsLetGo(request=4, units=[u for u, _ in first + other]), [])
        assert desk.used_bytes == 0

    asyncio.run(scenario())
