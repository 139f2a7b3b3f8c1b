"""A model of torch's caching allocator for CUDA, standing where torch would: pools, splitting, begin, end, release.

It follows `CUDACachingAllocator.cpp` of torch 2.11 and 2.13 as far as pools go: sizes are rounded to 512 bytes; blocks
up to 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of
their own; the best fit by (size, address) is split if enough remains; freed blocks join their neighbours. It
calls the C functions that it was given, and refuses what torch refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
SMALL = MIB
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class OutOfMemoryError(RuntimeError):
    """Torch's error of that name."""


class Block:
    """A part of a segment."""

    def __init__(self, pool: _Pool, address: int, size: int, segment_size: int) -> None:
        self.pool, self.address, self.size, self.segment_size = pool, address, size, segment_size
        self.previous: Block | None = None
        self.next: Block | None = None
        self.is_allocated = False
        #: freed, but a stream that used it may not be done
        self.awaits_events = False
        self.streams: set[int] = set()

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address

    @property
    def state(self) -> str:
        if self.awaits_events:
            return "active_awaiting_free"
        return "active_allocated" if self.is_allocated else "inactive"


class _Allocator:
    def __init__(self, allocate: int, free: int) -> None:
        self.allocate, self.free = _ALLOCATE(allocate), _FREE(free)


class _Pool:
    def __init__(self, number: tuple[int, int], allocator: _Allocator | None) -> None:
        self.id = number
        self.allocator = allocator
        self.use_count = 1
        self.free: dict[bool, list[tuple[tuple[int, int], Block]]] = {True: [], False: []}
        self.segments: dict[int, Block] = {}

    def take(self, size: int) -> Block | None:
        blocks = self.free[size <= SMALL]
        index = bisect_left(blocks, (size, 0), key=lambda each: each[0])
        return blocks.pop(index)[1] if index < len(blocks) else None

    def put(self, block: Block) -> None:
        insort(self.free[block.segment_size == 2 * MIB], (block.key, block), key=lambda each: each[0])

    def withdraw(self, block: Block) -> None:
        blocks = self.free[block.segment_size == 2 * MIB]
        del blocks[bisect_left(blocks, block.key, key=lambda each: each[0])]


class _NativePool:
    """What C++ owns of a `MemPool`: destroyed with it, whatever its class has for `__del__`."""

    def __init__(self, model: ModelTorch, pool: _Pool) -> None:
        self._model, self.pool = model, pool

    def __del__(self) -> None:
        self._model._destroy(self.pool)


class ModelTorch:
    """What the package uses of the module `torch`.

    Parameters
    ----------
    version
        Of torch: 2.11 and 2.13 differ inside pools.
    """

    uint8 = "uint8"

    def __init__(self, version: str = "2.13.0+model") -> None:
        self.__version__ = version
        self._is_211 = version.startswith("2.11")
        self._numbers = itertools.count(1)
        self._default = _Pool((0, 0), None)
        self._pools: dict[tuple[int, int], _Pool] = {(0, 0): self._default}
        #: ids of pools that record, innermost last
        self.under_way: list[tuple[int, int]] = []
        self._awaiting: list[Block] = []
        self._streams_are_done = True
        self._outside = itertools.count(1 << 50, 1 << 40)
        #: calls of torch's functions in order
        self.calls: list[str] = []
        #: names of calls that fail once
        self.failing: set[str] = set()
        self.is_capturing = False
        self.num_callbacks = 0
        self.settings = ""
        model = self

        class MemPool:
            def __init__(self, allocator: _Allocator | None = None) -> None:
                pool = _Pool((0, next(model._numbers)), allocator)
                model._pools[pool.id] = pool
                self._native = _NativePool(model, pool)

            @property
            def id(self) -> tuple[int, int]:
                return self._native.pool.id

        self.cuda = SimpleNamespace(
            MemPool=MemPool,
            memory=SimpleNamespace(_set_allocator_settings=self._set_settings),
            synchronize=self._synchronize,
            is_current_stream_capturing=lambda: self.is_capturing,
            use_mem_pool=self._use_mem_pool,
            memory_snapshot=self._snapshot,
        )
        self._C = SimpleNamespace(
            _cuda_customAllocator=_Allocator,
            _cuda_beginAllocateToPool=self._begin,
            _cuda_endAllocateToPool=self._end,
            _cuda_releasePool=self._release,
            _cuda_memorySnapshot=lambda mempool_id: None,
            _cuda_memoryStats=self._stats,
        )

    # --- torch's functions -----------------------------------

    def empty(self, size: int, dtype: object, device: str) -> _Tensor:
        assert dtype == self.uint8
        assert device == "cuda:0"
        return _Tensor(self, self.malloc(size))

    def _set_settings(self, settings: str) -> None:
        self.settings = settings

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            self.failing.remove(name)
            raise RuntimeError(f"{name} failed")

    def _begin(self, device: int, pool: tuple[int, int]) -> None:
        self._called("begin")
        if pool in self.under_way:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._pools[pool].use_count += 1
        self.under_way.append(pool)

    def _end(self, device: int, pool: tuple[int, int]) -> None:
        self._called("end")
        if pool not in self.under_way:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.under_way.remove(pool)

    def _release(self, device: int, pool: tuple[int, int]) -> None:
        self._called("release")
        assert self._pools[pool].use_count > 1, "released more often than begun"
        self._pools[pool].use_count -= 1

    @contextlib.contextmanager
    def _use_mem_pool(self, pool: Any, device: int | None = None) -> Iterator[None]:
        self._begin(0, pool.id)
        try:
            yield
        finally:
            self._end(0, pool.id)
            self._release(0, pool.id)

    def _synchronize(self, device: int) -> None:
        self._called("synchronize")
        self._streams_are_done = True

    def _destroy(self, pool: _Pool) -> None:
        assert pool.use_count == 1, "a pool was dropped while in use"
        for start, first in list(pool.segments.items()):
            if first.next is None and first.state == "inactive":
                del pool.segments[start]
                if pool.allocator is not None:
                    pool.allocator.free(start, first.segment_size, 0, None)
        if not pool.segments:
            del self._pools[pool.id]

    # --- blocks -----------------------------------

    def malloc(self, size: int) -> Block:
        """Allocate from the innermost pool that records."""
        if not (self._is_211 and self.under_way):
            self._process_events()
        pool = self._pools[self.under_way[-1]] if self.under_way else self._default
        size = max(1, -(-size // 512)) * 512
        block = pool.take(size) or self._new_segment(pool, size)
        remaining = block.size - size
        if remaining >= 512 if size <= SMALL else remaining > SMALL:
            rest = Block(pool, block.address + size, remaining, block.segment_size)
            rest.previous, rest.next, block.next, block.size = block, block.next, rest, size
            if rest.next is not None:
                rest.next.previous = rest
            pool.put(rest)
        block.is_allocated = True
        return block

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block, and is not done with it until the device is synchronised."""
        block.streams.add(stream)
        self._streams_are_done = False

    def free(self, block: Block) -> None:
        assert block.is_allocated, "freed twice"
        block.is_allocated = False
        if block.streams:
            block.awaits_events = True
            self._awaiting.append(block)
        else:
            self._return(block)

    def _process_events(self) -> None:
        if self._streams_are_done:
            while self._awaiting:
                block = self._awaiting.pop()
                block.awaits_events = False
                block.streams.clear()
                self._return(block)

    def _return(self, block: Block) -> None:
        before, after = block.previous, block.next
        if before is not None and before.state == "inactive":
            block.pool.withdraw(before)
            before.size += block.size
            before.next = after
            if after is not None:
                after.previous = before
            block = before
        if after is not None and after.state == "inactive":
            block.pool.withdraw(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        block.pool.put(block)

    def _new_segment(self, pool: _Pool, size: int) -> Block:
        if size <= SMALL:
            segment = 2 * MIB
        elif size < 10 * MIB:
            segment = 20 * MIB
        else:
            segment = -(-size // (2 * MIB)) * 2 * MIB
        if pool.allocator is None:
            address: int | None = next(self._outside)
        else:
            self.num_callbacks += 1
            address = pool.allocator.allocate(segment, 0, None)
        if not address:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        assert not any(
            address < start + first.segment_size and start < address + segment
            for each in self._pools.values()
            for start, first in each.segments.items()
        ), "a segment lies over another"
        block = pool.segments[address] = Block(pool, address, segment, segment)
        return block

    def _stats(self, device: int) -> dict[str, Any]:
        waiting = sum(block.size for block in self._awaiting)
        return {"active_bytes": {"all": {"current": waiting}}, "allocated_bytes": {"all": {"current": 0}}}

    def _snapshot(self, number: tuple[int, int], include_traces: bool = True) -> list[dict[str, Any]]:
        assert not include_traces, "the traces are long"
        pool = self._pools[number]
        segments = []
        for start, first in pool.segments.items():
            blocks, block = [], first
            while block is not None:
                blocks.append({"address": block.address, "size": block.size, "state": block.state})
                block = block.next
            assert sum(each["size"] for each in blocks) == first.segment_size
            segments.append({"address": start, "total_size": first.segment_size, "blocks": blocks})
        return segments


class _Tensor:
    """Frees its block when it is forgotten."""

    def __init__(self, model: ModelTorch, block: Block) -> None:
        self._model, self._block = model, block

    def __del__(self) -> None:
        self._model.free(self._block)
