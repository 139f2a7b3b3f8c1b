"""Sessions on the memory-file driver: in this process, with the executor's store beside them."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, OutOfDeviceMemory
from sharedkernel.device_memory.lane_memory import LaneMemory
from sharedkernel.device_memory.layout import GivenUnit
from sharedkernel.device_memory.mapper import SlotState
from sharedkernel.device_memory.offload import BackingStore, copy_out
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.device_memory.segments import Supplier
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.device_memory.torch_pool import TorchPools
from sharedkernel.selftest.lane_process import LANE as LANE
from sharedkernel.selftest.lane_process import LocalSupplier
from tests.device_memory.faults import Fault, FaultyDriver
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.pool_model import Block, ModelTorch
from tests.device_memory.traces import Allocated, Boundary, Freed, Step

#: iterations of a warm-up
WARM_UP = 2
ADDRESSES = 1 << 36
#: bytes of a block between the places at which it is written and looked at
_STRIDE = 64 << 10


def tensor_at(address: int, size: int) -> torch.Tensor:
    """Lay a tensor over mapped memory."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), size)  # type: ignore[attr-defined]
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def offload(arena: Arena, live: LiveRanges, backing: BackingStore) -> int:
    """Send everything away in both steps; return the bytes freed."""
    offsets = copy_out(arena, live, backing)
    arena.send_away(offsets)
    return sum(slot.size for slot in offsets)


def open_descriptors() -> int:
    """Return how many descriptors this process has, without those of earlier tests that wait to be collected.

    What stays is left out of the next collections: to look at all of it took nine tenths of the random steps' time.
    """
    gc.collect()
    gc.freeze()
    return len(os.listdir("/proc/self/fd"))


class StoreSupplier(LocalSupplier):
    """Brings units from a store in this process, and no more of them than a test allows."""

    def __init__(self, store: LaneStore, session: str) -> None:
        super().__init__(store, session)
        #: bytes that are still given; None: any number
        self.allowance: int | None = None
        self.is_device_full = False
        #: sizes of the units that were given for what lived in the lane
        self._moved: list[int] = []

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        if self.is_device_full:
            raise OutOfDeviceMemory("the device has no memory left, says the test.")
        if self.allowance is not None:
            if sum(sizes) > self.allowance:
                raise DeviceMemoryError("no room, says the test.")
            self.allowance -= sum(sizes)
        given = super().private_units(sizes, mid_iteration=mid_iteration)
        self._moved += () if mid_iteration else sizes
        return given

    def moved(self) -> list[int]:
        """Return the sizes of the pages that became private since this was asked last."""
        moved, self._moved = self._moved, []
        return moved


class FailingArena:
    """A session's page table on a driver that fails where a test wants, with the executor's store beside it."""

    def __init__(self) -> None:
        self.driver = FaultyDriver()
        self.store = LaneStore(MemfdDriver())
        self.supplier = StoreSupplier(self.store, "a")
        self.arena = Arena(self.driver, self.supplier.release_units, [1 << 32])

    def settle(self) -> None:
        """Compare the session's pages with the store's account."""
        self.arena.validate()
        self.store.validate()
        assert self.store.account().private.get("a", 0) == self.arena.private_bytes

    def fail_everywhere(
        self, change: Callable[[], object], check: Callable[[], object], error: type[BaseException] = Fault
    ) -> int:
        """Do *change* again and again, with another call of the driver failing each time, until none is left.

        Returns
        -------
        int
            How often it failed; *check* was called after each.
        """
        failures = 0
        self.driver.error = error
        while True:
            self.driver.fail_at = failures
            try:
                change()
            except error:
                failures += 1
                check()
                self.settle()
            else:
                self.driver.fail_at = None
                return failures


class Tenant:
    """One session's memory, with a model of torch's allocator, and something written in each of its blocks."""

    def __init__(
        self,
        supplier: Supplier,
        name: str,
        version: str = "2.13.0",
        driver: MemfdDriver | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.torch = ModelTorch(version)
        self.arena = Arena(driver or MemfdDriver(), supplier.release_units, [ADDRESSES])
        self.memory = LaneMemory(self.arena, TorchPools(self.torch), supplier, **options)
        #: what is written in each live block
        self.written: dict[Block, int] = {}
        #: all addresses of the session, mapped or not
        self._start = self.arena.address
        self._bytes = np.frombuffer((ctypes.c_ubyte * ADDRESSES).from_address(self._start), np.uint8)

    def allocate(self, size: int, byte: int) -> Block:
        """Allocate a block and write *byte* all over it."""
        block = self.torch.malloc(size)
        self._places(block)[:] = byte
        self.written[block] = byte
        return block

    def free(self, block: Block) -> None:
        self.check(block)
        del self.written[block]
        self.torch.free(block)

    def check(self, block: Block) -> None:
        """Check that a block holds what was written there."""
        found, byte = self._places(block), self.written[block]
        assert (found == byte).all(), f"{self.name}: {block.size} bytes at {block.address:#x} were overwritten: {found}"

    def _places(self, block: Block) -> Any:
        """Return the bytes of a block that are written and looked at: some in each page, the last among them."""
        start = block.address - self._start
        return self._bytes[start + (block.size - 1) % _STRIDE : start + block.size : _STRIDE]

    def check_all(self) -> None:
        for block in self.written:
            self.check(block)

    @property
    def sticky_bytes(self) -> int:
        """Bytes of private pages at a lane's addresses."""
        generations = self.memory._generations
        return sum(slot.size for each in generations for slot in each.lane_slots(SlotState.PRIVATE))

    def check_nothing_lives_in_lane(self) -> None:
        for block in self.written:
            for slot in self.arena.slots_within(block.address, block.size):
                assert slot.state is SlotState.PRIVATE, (slot, block.size)


class Session(Tenant):
    """A session in the same process as its executor's store."""

    def __init__(self, store: LaneStore, name: str, user: str | None = None, **options: Any) -> None:
        self.store, self.user = store, user or name
        self.supplier = StoreSupplier(store, name)
        super().__init__(self.supplier, name, **options)

    def set_lane(self, lane: int = LANE) -> None:
        new = self.store.share_lane(lane, self.name)
        self.memory.set_lane(self.store.layout(lane), self.supplier.given(new))

    def begin_turn(self, lane: int = LANE) -> None:
        self.memory.begin_turn(must_scrub=self.store.begin_turn(lane, self.name, self.user))

    def begin(self, lane: int = LANE) -> None:
        """Take a turn in the lane, and begin an iteration there."""
        self.begin_turn(lane)
        self.memory.begin_iteration()

    def hand_over(self, at: Any = "boundary", lane: int = LANE) -> Any:
        result = self.memory.hand_over(at)
        self.store.end_turn(lane, self.name)
        self.check_nothing_lives_in_lane()
        return result

    def offload(self, make_backing: Callable[[int], BackingStore] = BackingStore) -> None:
        """Move everything off the device."""
        pending = self.memory.prepare_offload(make_backing)
        pending.write()
        pending.commit()

    def restore(self) -> None:
        """Bring all that was sent away back to the device."""
        self.memory.restore(self.supplier.private_units(self.memory.sizes_away(), mid_iteration=False))

    def validate(self) -> None:
        self.arena.validate()
        self.store.validate()
        account = self.store.account()
        assert account.private.get(self.name, 0) == self.arena.private_bytes

    def close(self) -> None:
        self.memory.close()
        self.store.session_gone(self.name)


class Replay:
    """Replays a recorded trace in a session, iteration by iteration."""

    def __init__(self, session: Tenant, steps: Sequence[Step], seed: int = 0) -> None:
        self._session = session
        self._steps = iter(steps)
        self._seed = seed
        self._blocks: dict[int, Block] = {}

    def iterate(self) -> bool:
        """Run to the next boundary; False when the trace is over."""
        for step in self._steps:
            match step:
                case Allocated(block, size):
                    byte = (block * 31 + self._seed) % 251 + 1
                    self._blocks[block] = self._session.allocate(size, byte)
                case Freed(block):
                    self._session.free(self._blocks.pop(block))
                case Boundary():
                    return True
        return False


__all__ = ["LANE", "MIB", "Replay", "Session", "StoreSupplier", "offload", "open_descriptors", "tensor_at"]


def warm_up(session: Session) -> None:
    """Bring a session's lane pool into its steady state, with nothing in it."""
    session.begin()
    for _ in range(WARM_UP):
        session.memory.next_iteration()
    session.hand_over()
