"""One process with torch on a GPU, lane memory over it, and the executor's store beside it.

Tests run code in such a process, since what they look for ends processes: an assertion in torch's destructors, or two
threads that wait for each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.cuda import CudaDriver
from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.lane_memory import LaneMemory
from sharedkernel.device_memory.layout import GivenUnit
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.device_memory.torch_pool import TorchPools
from tests.device_memory.support import LANE, StoreSupplier

#: seconds that such a process may take, on a busy machine
PATIENCE = 90.0
#: kernels that keep a stream busy for tens of milliseconds
_BUSY = 2000


def run_alone(code: str, timeout: float = PATIENCE, **environment: str) -> str:
    """Run *code* in a process of its own, after ``from tests.gpu.lane_process import *``; return what it printed."""
    source = "from tests.gpu.lane_process import *\n" + textwrap.dedent(code)
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", source],
        capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}\n{process.stderr[-6000:]}"
    return process.stdout


class _Supplier(StoreSupplier):
    """Brings units to several threads: the executor's event loop takes one request at a time."""

    def __init__(self, store: LaneStore, session: str) -> None:
        super().__init__(store, session)
        self._lock = threading.Lock()

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        with self._lock:
            return super().private_units(sizes, mid_iteration=mid_iteration)

    def let_go(self, units: Sequence[int]) -> None:
        with self._lock:
            super().let_go(units)


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
        torch.cuda.init()
        self.store = LaneStore(CudaDriver(0))
        self.supplier = _Supplier(self.store, "s")
        self.pools = TorchPools(torch, 0, has_threads=lambda: threading.active_count() > 1)
        self.arena = Arena(CudaDriver(0), 1 << 36)
        self.memory = LaneMemory(self.arena, self.pools, self.supplier, **options)
        self.memory.watch_user_pools()
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
    assert not stream.query(), "the device is faster than this test"


def pool_bytes(number: tuple[int, int]) -> int:
    """Return the bytes that torch has from the device for one pool."""
    segments = torch._C._cuda_memorySnapshot(None)["segments"]
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) == number)
