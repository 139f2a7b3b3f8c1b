"""Lane memory of one process with torch on a GPU, and the executor's store beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.cuda_driver import CudaDriver
from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.lane_memory import LaneMemory
from sharedkernel.device_memory.layout import GivenUnit, UnitInfo
from sharedkernel.device_memory.segments import Supplier
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.device_memory.torch_pool import TorchPools

LANE = 1
#: kernels that keep a stream busy for tens of milliseconds
_BUSY = 2000


class LocalSupplier:
    """Brings units from a store in this process, to any thread.

    Parameters
    ----------
    store
        Gives them; it takes one request at a time.
    session
        Name of the session that they are for.
    """

    def __init__(self, store: LaneStore, session: str) -> None:
        self.store = store
        self.session = session
        self._lock = threading.Lock()

    def given(self, units: Iterable[UnitInfo]) -> list[GivenUnit]:
        """Return units as they would arrive over a socket."""
        return [
            GivenUnit(info.unit, info.size, os.dup(descriptor))
            for batch, descriptors in self.store.exported(units)
            for info, descriptor in zip(batch, descriptors, strict=True)
        ]

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        """Return new private units of these sizes."""
        with self._lock:
            units = self.store.give_private(self.session, sizes)
            given = self.given(units)
            self.store.confirm(self.session, [unit.unit for unit in units])
            return given

    def keep_units(self, units: Sequence[int]) -> None:
        """Make units of the lane private."""
        with self._lock:
            self.store.keep(self.session, units)

    def release_units(self, units: Sequence[int]) -> None:
        """Return units of which nothing is left in this process."""
        with self._lock:
            self.store.take_back(self.session, units)


def make_lane_memory(supplier: Supplier, **options: Any) -> tuple[Arena, LaneMemory]:
    """Return lane memory over torch's pools in this process, and the arena beneath it; CUDA is in use from now on.

    Parameters
    ----------
    supplier
        Brings its units.
    options
        Of :class:`~sharedkernel.device_memory.lane_memory.LaneMemory`.
    """
    torch.cuda.init()
    pools = TorchPools(torch, 0, has_threads=lambda: threading.active_count() > 1)
    arena = Arena(CudaDriver(0), supplier.release_units)
    pools.watch_user_pools()
    return arena, LaneMemory(arena, pools, supplier, **options)


class LaneProcess:
    """Lane memory of this process.

    Parameters
    ----------
    lane
        Bytes of its lane.
    options
        Of :class:`~sharedkernel.device_memory.lane_memory.LaneMemory`.
    """

    def __init__(self, lane: int = 64 * MIB, **options: Any) -> None:
        self.store = LaneStore(CudaDriver(0))
        self.supplier = LocalSupplier(self.store, "s")
        self.arena, self.memory = make_lane_memory(self.supplier, **options)
        self.store.create_lane(LANE, lane)
        self.set_lane()

    def set_lane(self) -> None:
        """Let the session show the lane as it is now."""
        new = self.store.share_lane(LANE, "s")
        self.memory.set_lane(self.store.layout(LANE), self.supplier.given(new))

    def resize_lane(self, size: int) -> None:
        """Make the lane larger or smaller; its pools are retired."""
        self.store.resize_lane(LANE, size)
        self.set_lane()

    def begin_turn(self) -> None:
        """Begin a turn and an iteration in it."""
        self.memory.begin_turn(must_scrub=self.store.begin_turn(LANE, "s", "ada"))
        self.memory.begin_iteration()

    def hand_over(self, at: Literal["boundary", "cell", "yield"] = "boundary") -> None:
        """End the turn."""
        self.memory.hand_over(at)
        self.store.end_turn(LANE, "s")


def empty(size: int) -> torch.Tensor:
    """Allocate *size* bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def keep_busy(stream: torch.cuda.Stream) -> None:
    """Queue work of tens of milliseconds on a stream, at least."""
    with torch.cuda.stream(stream):
        for _ in range(_BUSY):
            torch.cuda._sleep(100_000)


def pool_bytes(number: tuple[int, int]) -> int:
    """Return the bytes that torch has from the device for one pool."""
    segments = torch._C._cuda_memorySnapshot(None)["segments"]
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) == number)
