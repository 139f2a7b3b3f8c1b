"""What this GPU and its driver allow, and what each call costs: to be run before all else.

    python benchmarks/gpu/probe.py --json benchmarks/gpu/results/probe.json

Two processes. The first creates units without a context on the device and exports them; both import and map them; one
writes, the other reads, both ways; an address is remapped and shows other memory; a page is made private while the
other process goes on writing the lane. It tries what CUDA's header calls impossible for now, an offset into a handle,
and asks NVML whose memory the shared units are. Every fact that lane memory relies on is in the result under "facts",
and each is true where lanes can be shared.

Exit codes: 0 all facts hold, 1 some do not, 2 there is no GPU to ask.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sharedkernel.device_memory.arena import ADDRESSES, Arena
from sharedkernel.device_memory.cuda_driver import CudaDriver, load_bindings
from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, DriverUnavailable
from sharedkernel.device_memory.layout import GivenUnit, LaneLayout, UnitInfo
from sharedkernel.device_memory.store import LaneStore

UNIT = 2 * MIB
LANE = 1
#: each call is timed so many times
REPEATS = 64
_T = TypeVar("_T")


class Clock:
    """Times calls, in microseconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call once with *arguments* and note how long it took."""
        start = time.perf_counter()
        result = call(*arguments)
        self._seconds.setdefault(name, []).append(time.perf_counter() - start)
        return result

    def report(self) -> dict[str, dict[str, float]]:
        """Return median, maximum and number of each call's times."""
        return {
            name: {
                "median": round(statistics.median(seconds) * 1e6, 1),
                "max": round(max(seconds) * 1e6, 1),
                "count": len(seconds),
            }
            for name, seconds in self._seconds.items()
        }


def send_units(connection: socket.socket, store: LaneStore, units: list[UnitInfo]) -> None:
    """Send units with their descriptors."""
    for batch, descriptors in store.exported(units):
        message = json.dumps([(unit.unit, unit.size) for unit in batch]).encode()
        socket.send_fds(connection, [message], descriptors)


def receive_units(connection: socket.socket, count: int) -> list[GivenUnit]:
    """Return so many units, which come in batches."""
    given: list[GivenUnit] = []
    while len(given) < count:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 253, socket.MSG_CMSG_CLOEXEC)
        given += [
            GivenUnit(unit, size, descriptor)
            for (unit, size), descriptor in zip(json.loads(data), descriptors, strict=True)
        ]
    return given


def holds(driver: CudaDriver, address: int, byte: int) -> bool:
    """Return whether a unit's first and last bytes are *byte*."""
    buffer = bytearray(64)
    for place in (address, address + UNIT - len(buffer)):
        driver.read(memoryview(buffer), place)
        if buffer != bytes([byte]) * len(buffer):
            return False
    return True


def used_bytes(device: int) -> dict[str, Any]:
    """Return NVML's view: the device's used bytes, and each process's where it can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {
            "device": int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            "processes": {str(process.pid): process.usedGpuMemory for process in processes},
            "name": str(pynvml.nvmlDeviceGetName(handle)),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        }
    except Exception as error:
        # without it the probe still says everything else
        return {"error": str(error)}


def _count_no_units(units: list[int]) -> None:
    """Ignore released units: the store here ends with the process."""


# --- the second process -----------------------------------


def be_the_other(descriptor: int, device: int) -> None:
    """Import the lane, and do what the first process says."""
    with socket.socket(fileno=descriptor) as connection:
        arena = Arena(CudaDriver(device), _count_no_units)
        driver: Any = arena.driver
        units = [UnitInfo(*each) for each in json.loads(connection.recv(1 << 20))]
        arena.import_lane(receive_units(connection, len(units)))
        area = arena.add_lane_area(units)
        connection.send(b"null")
        while data := connection.recv(1 << 16):
            what, number, byte = json.loads(data)
            address = area.slots[number].address
            answer: Any = None
            if what == "write":
                driver.fill(address, UNIT, byte)
                driver.synchronize()
            elif what == "read":
                answer = holds(driver, address, byte)
            connection.send(json.dumps(answer).encode())
        arena.close()


class Other:
    """The second process, as the first sees it."""

    def __init__(self, store: LaneStore, layout: LaneLayout, device: int) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--other", str(theirs.fileno()), "--device", str(device)],
                pass_fds=[theirs.fileno()],
            )
        self._connection.send(json.dumps([(unit.unit, unit.size) for unit in layout.units]).encode())
        send_units(self._connection, store, list(layout.units))
        self._answer()

    def do(self, what: str, number: int, byte: int) -> Any:
        """Let it "write" a byte all over a unit of the lane, or "read" whether it is there."""
        self._connection.send(json.dumps([what, number, byte]).encode())
        return self._answer()

    def _answer(self) -> Any:
        data = self._connection.recv(1 << 16)
        if not data:
            raise DeviceMemoryError("the second process has ended.")
        return json.loads(data)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self.process.wait()


# --- the first process -----------------------------------


def probe(device: int, lane_bytes: int) -> dict[str, Any]:
    """Return all findings."""
    clock, facts = Clock(), {}
    executor = CudaDriver(device)
    executor.check_sharing()
    store = LaneStore(executor)
    layout = clock.time("create the lane", lambda: store.create_lane(LANE, lane_bytes))
    facts["creates_and_exports_without_context"] = not executor.has_context()
    context = make_context(executor, device, clock)
    time_calls(executor, clock)
    for size in (16 * MIB, 64 * MIB):
        time_units(executor, clock, size, REPEATS // 8, f" {size // MIB} MiB")
    nvml = {"before": used_bytes(device)}
    other = clock.time("start another process and give it the lane", lambda: Other(store, layout, device))
    try:
        arena = Arena(CudaDriver(device), _count_no_units)
        driver: Any = arena.driver
        local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def bring(units: list[UnitInfo]) -> list[GivenUnit]:
            send_units(local, store, units)
            return receive_units(remote, len(units))

        arena.import_lane(bring(store.share_lane(LANE, "probe")))
        area = clock.time("map the lane", lambda: arena.add_lane_area(layout.units))
        nvml["both map the lane"] = used_bytes(device)
        first, second = area.slots[0], area.slots[1]
        driver.fill(first.address, UNIT, 11)
        driver.synchronize()
        facts["written_here_read_there"] = other.do("read", 0, 11)
        other.do("write", 1, 22)
        facts["written_there_read_here"] = holds(driver, second.address, 22)
        facts["survivor_is_cut_off"] = survivor_is_cut_off(arena, store, bring, other, clock)
        facts["rejoined_page_shows_the_lane"] = rejoins(arena, other, clock)
        facts["several_mappings_at_once"] = shows_twice(arena, layout)
        facts["offset_is_refused"] = refuses_offset(executor)
        facts["part_of_a_mapping_is_not_unmapped"] = refuses_part(executor)
        clock.time("scrub the lane", arena.scrub_lane)
        time_copies(driver, area.address, layout.size // 2, clock)
        arena.close()
        nvml["only the other maps the lane"] = used_bytes(device)
    finally:
        other.close()
    nvml["nobody maps the lane"] = used_bytes(device)
    store.session_gone("probe")
    store.remove_lane(LANE)
    nvml["the lane is removed"] = used_bytes(device)
    facts["reserves_addresses_of_an_arena"] = reserves(executor, ADDRESSES[0])
    return {
        "facts": facts,
        "processes": {"first": os.getpid(), "other": other.process.pid},
        "context": context,
        "microseconds": clock.report(),
        "nvml": nvml,
        "lane_bytes": layout.size,
        "copied_bytes": layout.size // 2,
        "granularity_bytes": executor.granularity,
        "must_be_idle_to_map": executor.must_be_idle_to_map,
    }


def time_calls(driver: CudaDriver, clock: Clock) -> None:
    """Time each call of the driver for one unit."""
    time_units(driver, clock, UNIT, REPEATS)
    address = clock.time("reserve 1 GiB", driver.reserve, 1 << 30)
    handles = [driver.create(UNIT) for _ in range(REPEATS)]
    for number, handle in enumerate(handles):
        driver.map(address + number * UNIT, UNIT, handle)
    clock.time(f"set access of {REPEATS} units at once", driver.set_access, address, REPEATS * UNIT)
    clock.time(f"unmap {REPEATS} units at once", driver.unmap, address, REPEATS * UNIT)
    for handle in handles:
        driver.release(handle)
    driver.free(address, 1 << 30)


def make_context(driver: CudaDriver, device: int, clock: Clock) -> dict[str, Any]:
    """Return what NVML counts before and after this process makes its context, whose time is taken."""
    before = used_bytes(device)
    clock.time("make a context", driver.synchronize)
    return {"before": before, "after": used_bytes(device)}


def reserves(driver: CudaDriver, size: int) -> bool:
    """Try to reserve as many addresses as a session does first."""
    try:
        driver.free(driver.reserve(size), size)
    except DeviceMemoryError:
        return False
    return True


def time_units(driver: CudaDriver, clock: Clock, size: int, times: int, suffix: str = "") -> None:
    """Time each call for one unit of *size* bytes, so many *times*; names of the calls end with *suffix*."""
    address = driver.reserve(size)
    for _ in range(times):
        handle = clock.time(f"create{suffix}", driver.create, size)
        descriptor = clock.time(f"export{suffix}", driver.export, handle)
        imported = clock.time(f"import{suffix}", driver.import_, descriptor, size)
        os.close(descriptor)
        clock.time(f"map{suffix}", driver.map, address, size, imported)
        clock.time(f"set access{suffix}", driver.set_access, address, size)
        driver.synchronize()
        clock.time(f"unmap{suffix}", driver.unmap, address, size)
        clock.time(f"release an import{suffix}", driver.release, imported)
        clock.time(f"release the memory{suffix}", driver.release, handle)
    driver.free(address, size)


def survivor_is_cut_off(
    arena: Arena, store: LaneStore, bring: Callable[[list[UnitInfo]], list[GivenUnit]], other: Other, clock: Clock
) -> bool:
    """Make a page private and let the other process overwrite the lane."""
    slot = next(slot for slot in arena.slots() if slot.lane_unit is not None)
    driver: Any = arena.driver
    driver.fill(slot.address, UNIT, 33)
    given = bring(store.give_private("probe", [UNIT]))
    clock.time("make a page private", lambda: arena.make_private([slot], given))
    other.do("write", 0, 44)
    return holds(driver, slot.address, 33) and other.do("read", 0, 44)


def rejoins(arena: Arena, other: Other, clock: Clock) -> bool:
    """Let that page show the lane again."""
    slot = next(slot for slot in arena.slots() if slot.lane_unit is not None)
    clock.time("let a page rejoin the lane", lambda: arena.rejoin([slot]))
    return holds(arena.driver, slot.address, 44)  # type: ignore[arg-type]


def shows_twice(arena: Arena, layout: LaneLayout) -> bool:
    """Show the lane's units at two places of one process."""
    first = next(slot for slot in arena.slots() if slot.lane_unit is not None)
    again = arena.add_lane_area(layout.units[:2])
    driver: Any = arena.driver
    driver.fill(first.address, UNIT, 55)
    driver.synchronize()
    shown = holds(driver, again.address, 55)
    arena.remove(again.slots)
    return shown


def refuses_offset(driver: CudaDriver) -> bool:
    """Try to map the second half of a unit: where it works, fewer and larger units would do."""
    handle, address = driver.create(2 * UNIT), driver.reserve(2 * UNIT)
    try:
        driver.map(address, UNIT, handle, UNIT)
    except DeviceMemoryError:
        return True
    else:
        driver.unmap(address, UNIT)
        return False
    finally:
        driver.release(handle)
        driver.free(address, 2 * UNIT)


def refuses_part(driver: CudaDriver) -> bool:
    """Try to unmap half of a mapping."""
    handle, address = driver.create(2 * UNIT), driver.reserve(2 * UNIT)
    driver.map(address, 2 * UNIT, handle)
    driver.release(handle)
    try:
        driver.unmap(address, UNIT)
    except DeviceMemoryError:
        driver.unmap(address, 2 * UNIT)
        driver.free(address, 2 * UNIT)
        return True
    return False


def time_copies(driver: CudaDriver, address: int, size: int, clock: Clock) -> None:
    """Time copies between the device and pinned memory."""
    buffer = driver.host_buffer(size)
    for _ in range(4):
        clock.time("copy half of the lane to pinned memory", driver.read, buffer.view, address)
        clock.time("copy half of the lane from pinned memory", driver.write, address, buffer.view)
    buffer.close()


def main() -> int:
    """Probe, write the result, and say it in a few lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", type=int, default=0, help="number of the CUDA device (default: 0)")
    parser.add_argument("--lane", type=int, default=512, help="size of the lane in MiB (default: 512)")
    parser.add_argument("--json", default="benchmarks/gpu/results/probe.json", help="where the result goes")
    parser.add_argument("--other", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.other is not None:
        be_the_other(options.other, options.device)
        return 0
    try:
        load_bindings()
        CudaDriver(options.device)
    except DriverUnavailable as error:
        sys.stderr.write(f"nothing was probed: {error}\n")
        return 2
    result = probe(options.device, options.lane * MIB)
    result["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    result["device"] = result["nvml"]["before"].get("name", "unknown")
    result["python"] = platform.python_version()
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    for name, fact in result["facts"].items():
        sys.stdout.write(f"{'yes' if fact else 'NO '}  {name}\n")
    sys.stdout.write(f"written to {path}\n")
    return 0 if all(result["facts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
