"""What a hand-over asks of the driver: calls, waits and bytes, counted on the software GPU, and the time they predict.

    python -m tests.software_gpu.run -- python benchmarks/gpu/calls.py --json calls.jsonl

One line of JSON for each operation, at lanes of 1, 8 and 64 GiB, of which the software GPU backs only what is touched.
Operations of a lane that its session has mapped already are apart from those that create, share and map units. Counted
is one session's process, with the executor's store in it; the other sessions of the lane do the same at their turns.

The time is a prediction, from costs of single calls on a card and nothing else: no Python, no messages, no iteration
that has to come to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: bytes of the lanes
LANES = (1 << 30, 8 << 30, 64 << 30)
#: bytes that outlive an iteration in the lane; bytes that are moved off the device
SURVIVORS, MOVED = 64 << 20, 256 << 20
_CAPACITY = "256G"
#: turns after which a lane's pools are mapped
_FIRST_TURNS = 4
#: calls that wait until the device is idle
_WAITS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
#: calls in which the driver changes nothing, and torch's look at its allocator
_FREE = ("cuCtxGetCurrent", "cuDevicePrimaryCtxGetState", "sg_capture_status")

#: microseconds of one call, or for the last two of one mapping. A100: kvcached's bench_vmm, 4096 units of 2 MiB. It has
#: no figures for exporting, importing, releasing and waiting: those of the H100 are taken. H100: `create`, `export` …
#: of results/2026-11-27-h100/first/probe.json, units of 2 MiB; changing 64 mappings at once took it half as long each
COSTS: Mapping[str, Mapping[str, float]] = {
    "A100": {"cuMemCreate": 193.0, "cuMemMap": 1.5, "cuMemSetAccess": 36.0, "cuMemUnmap": 26.0},
    "H100": {
        "cuMemCreate": 14.0, "cuMemExportToShareableHandle": 567.2, "cuMemImportFromShareableHandle": 24.2,
        "cuMemMap": 6.6, "cuMemRelease": 10.0, "cuMemSetAccess": 50.4, "cuMemUnmap": 28.9,
    },
}  # fmt: skip
_BY_MAPPING = ("cuMemSetAccess", "cuMemUnmap")
#: microseconds to queue a copy or a fill, or to wait for none: a guess
_SUBMIT = 5.0
#: bytes per second of a fill or a copy on the device (an H100 scrubs 2 GiB in 0.8 ms), and of the bus to the host
_DEVICE_SPEED, _BUS_SPEED = 2.7e12, 55e9


@dataclass
class Calls:
    """What the driver was asked for meanwhile."""

    #: how often each call came
    times: Counter[str] = field(default_factory=Counter)
    #: bytes that each copied or filled, mappings that each changed
    amounts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Calls of the driver."""
        return sum(self.times.values())

    @property
    def waits(self) -> int:
        """Waits for the device."""
        return sum(self.times[name] for name in _WAITS)

    @property
    def bytes(self) -> int:
        """Bytes copied and filled."""
        return sum(amount for name, amount in self.amounts.items() if name not in _BY_MAPPING)

    def predicted(self, card: str) -> float:
        """Return the seconds that all of this takes on a card, by :data:`COSTS`."""
        costs = {**COSTS["H100"], **COSTS[card]}
        microseconds = 0.0
        for name, times in self.times.items():
            microseconds += costs.get(name, _SUBMIT) * (self.amounts[name] if name in _BY_MAPPING else times)
        seconds = microseconds / 1e6
        for name, amount in self.amounts.items():
            if name not in _BY_MAPPING:
                seconds += amount / (_BUS_SPEED if "HtoD" in name or "DtoH" in name else _DEVICE_SPEED)
        return seconds


def driver_calls() -> Calls:
    """Return what the software GPU's driver was asked for in this process so far."""
    text = ctypes.create_string_buffer(1 << 16)
    ctypes.CDLL("libcuda.so.1").sg_counts(text, len(text))
    calls = Calls()
    for line in text.value.decode().splitlines():
        name, times, amount = line.split()
        if name not in _FREE:
            calls.times[name.removesuffix("_v2")] = int(times)
            calls.amounts[name.removesuffix("_v2")] = int(amount)
    return calls


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of the body."""
    before, calls = driver_calls(), Calls()
    yield calls
    after = driver_calls()
    calls.times = after.times - before.times
    calls.amounts = after.amounts - before.amounts


def count_lane(size: int) -> dict[str, Calls]:
    """Return the calls of each operation in a lane of *size* bytes, by name; uses this process's device.

    Parameters
    ----------
    size
        Of the lane.
    """
    import torch

    from sharedkernel.selftest.lane_process import LANE, LaneProcess, empty

    torch.cuda.init()
    process = LaneProcess(64 << 20)
    found: dict[str, Calls] = {}

    def iterate() -> None:
        blocks = [*(empty(1 << 16) for _ in range(100)), empty(SURVIVORS)]
        del blocks

    def turn(grant: str, hand_over: str, *, other: bool = True, survivors: bool = False) -> Any:
        if other:
            process.store.begin_turn(LANE, "other", "grace")
            process.store.end_turn(LANE, "other")
        with counted() as found[grant]:
            process.begin_turn()
        iterate()
        kept = empty(SURVIVORS) if survivors else None
        with counted() as found[hand_over]:
            process.hand_over()
        return kept

    with counted() as found["first units"]:
        process.resize_lane(size)
    with counted() as found["first mapping"]:  # of the pool for a training's first iterations, and of that for the rest
        for _ in range(_FIRST_TURNS):
            turn("grant", "hand-over")
    turn("grant", "hand-over")
    turn("grant, same user before", "hand-over", other=False)
    kept = turn("grant", "hand-over with survivors", survivors=True)
    turn("grant beside survivors", "hand-over beside survivors")
    del kept
    with counted() as found["growth"]:
        process.resize_lane(size + size // 8)
        process.begin_turn()
    process.hand_over()
    tensors = [empty(64 << 20) for _ in range(MOVED >> 26)]
    process.hand_over("cell")
    with counted() as found["offload"]:
        pending = process.memory.prepare_offload()
        pending.write()
        pending.commit()
    with counted() as found["restore"]:
        process.memory.restore(process.supplier.private_units(process.memory.sizes_away(), mid_iteration=False))
    del tensors
    return found


def count_lanes(sizes: Sequence[int] = LANES) -> dict[int, dict[str, Calls]]:
    """Return the calls of each operation by the lane's size, each lane in a process of its own.

    Parameters
    ----------
    sizes
        Bytes of the lanes.
    """
    os.environ["SOFTWARE_GPU_CAPACITY"] = _CAPACITY  # which the processes read as they start
    try:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            return dict(zip(sizes, pool.map(count_lane, sizes, chunksize=1), strict=True))
    finally:
        del os.environ["SOFTWARE_GPU_CAPACITY"]


def main() -> int:
    """Count everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the lines go; default: standard output")
    options = parser.parse_args()
    if "SOFTWARE_GPU_DIRECTORY" not in os.environ:
        sys.stderr.write("calls: this counts what a software GPU is asked for; run it there, as its --help says.\n")
        return 2
    lines = []
    for lane, found in count_lanes().items():
        for what, calls in found.items():
            predicted = {card: round(calls.predicted(card) * 1e3, 3) for card in COSTS}
            figures = {"calls": calls.total, "waits": calls.waits, "bytes": calls.bytes, "predicted_ms": predicted}
            lines.append(json.dumps({"what": what, "lane_bytes": lane, **figures, "by_call": dict(calls.times)}))
    text = "\n".join(lines) + "\n"
    if options.json is None:
        sys.stdout.write(text)
    else:
        options.json.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
