"""A GPU of memory files for real sessions: torch's CUDA functions by the tests' model of its allocator.

:func:`install` puts it under a build of torch without CUDA. Cells then use :class:`Buffer` for a tensor on the GPU: it
passes the session's gate as an operation on one does, and its bytes are where the model's allocator says.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from tests.device_memory.pool_model import Block, ModelTorch

MIB = 1 << 20
#: bytes of a buffer of which one is written and looked at
_PAGE = 64 << 10
TOTAL = 16 << 30


class CountingTorch(ModelTorch):
    """The model, with torch's figures."""

    uint8 = torch.uint8  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.peak = 0

    def malloc(self, size: int) -> Block:
        block = super().malloc(size)
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        super().free(block)

    @property
    def reserved(self) -> int:
        return sum(first.segment_size for pool in self._pools.values() for first in pool.segments.values())

    def statistics(self, device: int) -> dict[str, Any]:
        assert device == 0
        return {
            "active_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved}},
        }

    def reset_peak(self, device: int) -> None:
        self.peak = self.allocated


model: CountingTorch


def install(module: Any) -> None:
    """Give *module*, which is torch, a GPU."""
    global model
    model = CountingTorch()
    lazy: list[Callable[[], None]] = []
    state = SimpleNamespace(is_initialized=False)

    def init() -> None:
        if not state.is_initialized:
            for call in lazy:
                call()
            state.is_initialized = True

    for name, function in vars(model._C).items():
        setattr(module._C, name, function)
    module._C._cuda_memoryStats = model.statistics
    module._C._cuda_resetPeakMemoryStats = model.reset_peak
    cuda = module.cuda
    for name, function in vars(model.cuda).items():
        if name != "memory":
            setattr(cuda, name, function)
    cuda.memory.use_mem_pool = cuda.use_mem_pool
    cuda.memory._set_allocator_settings = model._set_settings
    cuda.init, cuda._lazy_call, cuda.is_initialized = init, lazy.append, lambda: state.is_initialized
    cuda.mem_get_info = lambda device: (TOTAL - model.reserved, TOTAL)
    cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=TOTAL)
    cuda.set_per_process_memory_fraction = lambda fraction, device: None
    cuda.empty_cache = lambda: None
    empty = module.empty

    @functools.wraps(empty)
    def empty_here_or_there(*args: Any, **options: Any) -> Any:
        if str(options.get("device")).startswith("cuda"):
            return model.empty(*args, **options)
        return empty(*args, **options)

    module.empty = empty_here_or_there


class _OnGpu(torch.Tensor):
    """What the gate takes for a tensor on the GPU."""

    is_cuda = True  # type: ignore[assignment]


_on_gpu = torch.zeros(1).as_subclass(_OnGpu)


def operate() -> None:
    """Do something on the GPU: pass the gate."""
    torch.neg(_on_gpu)


class Buffer:
    """So many bytes on the GPU, freed with the last reference; one of each 64 KiB is written and looked at.

    Parameters
    ----------
    size
        How many.
    byte
        What to write there; None: nothing.
    """

    def __init__(self, size: int, byte: int | None = None) -> None:
        operate()
        torch.cuda.init()
        self._block = model.malloc(size)
        storage = torch._C._construct_storage_from_data_pointer(  # type: ignore[attr-defined]
            self._block.address, torch.device("cpu"), size
        )
        self._bytes = torch.tensor([], dtype=torch.uint8).set_(storage)[-self._block.address % _PAGE :: _PAGE]
        if byte is not None:
            self.write(byte)

    def write(self, byte: int) -> None:
        self._bytes.fill_(byte)

    def holds(self, byte: int) -> bool:
        """Whether all that is looked at is *byte*."""
        return self.count(byte) == len(self._bytes)

    def count(self, byte: int) -> int:
        """Return in how many of the places that are looked at there is *byte*."""
        return int((self._bytes == byte).sum())

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            model.free(self._block)


class Steps:
    """What a training goes through, again and again: to the session it is always the same loop."""

    number = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))


@functools.cache
def pages() -> Any:
    """Return this session's device memory, as its gate has it."""
    from sharedkernel.session.lanes.lane_turns import LaneTurns

    return next(each for each in gc.get_objects() if type(each) is LaneTurns)
