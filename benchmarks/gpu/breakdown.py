"""Where offloading and hand-overs spend their time, in one process without an executor: one line of JSON for each part.

    python benchmarks/gpu/breakdown.py --mib 4096 --json breakdown.jsonl

The host's memory is measured first: offloading writes to fresh pages, and providing those can be slower than the bus,
above all in a virtual machine.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from sharedkernel.device_memory.driver import MIB
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.selftest.lane_process import LANE, LaneProcess, empty

#: bytes that a thread copies at a time
_PART = 4 * MIB
#: turns of each lane
_TURNS = 6


class Parts:
    """Seconds of the parts of what is measured, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the body as a part."""
        begun = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)

    def medians(self) -> dict[str, float]:
        """Return the median of each part."""
        return {name: round(statistics.median(values), 6) for name, values in self.seconds.items()}


def tell(what: str, **figures: object) -> None:
    """Write one line."""
    print(json.dumps({"what": what, **figures}), flush=True)  # noqa: T201


def host_memory(size: int) -> None:
    """Copy from pinned memory to fresh memory, then to the same memory again, with 1 to 16 threads."""
    pinned = torch.empty(128 * MIB, dtype=torch.uint8, pin_memory=True)
    for threads in (1, 4, 8, 16):
        memory = mmap.mmap(-1, size)
        memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def copy(at: int, start: int = start) -> None:
            ctypes.memmove(start + at, pinned.data_ptr() + at % (128 * MIB), _PART)

        parts = Parts()
        with ThreadPoolExecutor(threads) as pool:
            for name in ("first", "again"):
                with parts.part(name):
                    list(pool.map(copy, range(0, size, _PART)))
        speeds = {f"{name}_gbs": round(size / values[0] / 1e9, 2) for name, values in parts.seconds.items()}
        tell("host memory", threads=threads, **speeds)


def offloads(process: LaneProcess, size: int) -> None:
    """Move *size* bytes off the device and back."""
    kept = [empty(64 * MIB).fill_(number) for number in range(size // (64 * MIB))]
    parts = Parts()
    for _ in range(3):
        with parts.part("prepare"):
            pending = process.memory.prepare_offload()
        with parts.part("write"):
            pending.write()
        with parts.part("commit"):
            pending.commit()
        with parts.part("units"):
            units = process.supplier.private_units(process.memory.sizes_away(), mid_iteration=False)
        with parts.part("restore"):
            process.memory.restore(units)
        process.set_lane()
    if not all(int(tensor[0]) == number for number, tensor in enumerate(kept)):
        raise SharedKernelError("what came back is not what was offloaded.")
    tell("offload", bytes=size, **parts.medians())


def hand_overs(process: LaneProcess, lane: int) -> None:
    """Hand a lane of *lane* bytes over to another user and take it back, time and again."""
    process.resize_lane(lane)
    parts = Parts()
    for _ in range(_TURNS):
        process.store.begin_turn(LANE, "other", "grace")
        process.store.end_turn(LANE, "other")
        with parts.part("begin_turn"):
            process.begin_turn()
        blocks = [*(empty(1 << 16) for _ in range(500)), *(empty(8 * MIB) for _ in range(2))]
        del blocks
        with parts.part("hand_over"):
            process.hand_over()
    tell("hand-over", lane_bytes=lane, units=len(process.store.layout(LANE).units), **parts.medians())


def main() -> int:
    """Measure all parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mib", type=int, default=2048, help="how much is moved; lanes are up to twice as large")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the lines go; default: standard output")
    options = parser.parse_args()
    try:
        check_torch()
        with contextlib.ExitStack() as files:
            if options.json is not None:
                files.enter_context(contextlib.redirect_stdout(files.enter_context(options.json.open("w"))))
            _measure(options.mib * MIB)
    except SharedKernelError as error:
        sys.stderr.write(f"breakdown: {error}\n")
        return 2
    return 0


def _measure(size: int) -> None:
    torch.cuda.init()
    host_memory(size)
    process = LaneProcess(64 * MIB)
    offloads(process, size)
    for lane in (size // 16, size, 2 * size):
        hand_overs(process, lane)


if __name__ == "__main__":
    sys.exit(main())
