"""Large lanes: others are served while their units are created."""

from __future__ import annotations

import asyncio

from sharedkernel.device_memory.drivers.base import MIB
from sharedkernel.device_memory.drivers.memfd import MemfdDriver
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.executor.devices.lane_server import LaneServer
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
        assert set(seen) >= set(range(2 * MIB, 400 * MIB, 2 * MIB))
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
