"""Torch's allocator over addresses of ours: memory pools whose segments come from callbacks. Not yet run on a GPU.

Torch's caching allocator gives each pool segments, once asked for, and hands out blocks of them; it calls back for a
new segment only when no free block of the pool fits. The rules this module keeps:

- a callback runs while the allocator may hold its mutex, and takes Python's interpreter lock. So it calls nothing of
  torch, and takes an address from a list; only when there is none left does it ask for more, and that is safe only
  because ``release_lock_on_cudamalloc`` makes the allocator give its mutex up before it calls;
- no signal handler that would move memory does so within a callback (:func:`is_called_back`): whoever sent the signal
  has to repeat it. An interrupt ends a callback's wait for memory, and is raised where torch's error for it is seen;
- callbacks and pools live as long as the process: torch may call one long after the pool's last use;
- a pool begins for all threads of the process, so that backward's threads allocate from it as well. Every begin has
  its end, and every end is followed by a release, whatever fails between;
- inner pools win: a pool that the user, or a CUDA graph, begins later is used instead of ours;
- torch 2.11 behaves inside any pool as under graph capture: events of blocks used by several streams are not looked
  at. There, :meth:`TorchPools.process_events` is called at each boundary.

What is torch's comes in as an argument, so that a model of its allocator can stand in where there is no device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from sharedkernel.device_memory.errors import DriverUnavailable, InvalidMapping

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

#: allocator settings that the callbacks rely on
SETTINGS = "release_lock_on_cudamalloc:True,expandable_segments:False"
#: what this module needs of `torch._C`
_NEEDED = (
    "_cuda_customAllocator", "_cuda_beginAllocateToPool", "_cuda_endAllocateToPool", "_cuda_releasePool",
    "_cuda_memorySnapshot",
)  # fmt: skip
#: a block of this allocator is a multiple of this many bytes
_SMALLEST_BLOCK = 512
_INACTIVE = "inactive"

#: C functions that torch may call for as long as the process lives
_kept_alive: list[Any] = []
#: the code that they run
_callbacks: set[CodeType] = set()


@dataclass(eq=False)
class Pool:
    """One pool of torch's."""

    memory_pool: Any
    is_begun: bool = False
    #: start → size of the segments that torch has from the callbacks
    segments: dict[int, int] = field(default_factory=dict)
    #: segments that torch gave back, not looked at yet
    returned: list[tuple[int, int]] = field(default_factory=list)


class TorchPools:
    """Pools of this process on one device.

    Parameters
    ----------
    torch
        The module, or what stands in for it.
    device
        Number of the device as torch sees it.
    unseen
        Makes a context in which allocations count in no peak: what is allocated only to have memory is no need.
    """

    def __init__(
        self,
        torch: Any,
        device: int = 0,
        unseen: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        missing = [name for name in _NEEDED if not hasattr(torch._C, name)]
        if missing:
            raise DriverUnavailable(
                f"torch {torch.__version__} was built without {missing[0]}, so its allocator cannot be given memory; "
                "install a CUDA build of torch 2.11 or later."
            )
        self._torch = torch
        self._device = device
        self._unseen = unseen
        #: at each boundary :meth:`process_events` has to be called
        self.needs_boundaries = _version(torch.__version__) < (2, 13)
        self._num_user_pools = 0
        self._begun: list[Pool] = []
        self._refusal: BaseException | None = None
        torch.cuda.memory._set_allocator_settings(SETTINGS)
        # from now on torch's own pool has a free block, for `process_events`
        self._empty(_SMALLEST_BLOCK)

    def make(self, allocate: Callable[[int], int]) -> Pool:
        """Make a pool.

        Parameters
        ----------
        allocate
            Given bytes, returns the address of a mapped range for a segment. Called in any thread. If it raises, torch
            raises ``OutOfMemoryError``, and :meth:`take_refusal` tells the true cause.
        """
        pool = Pool(None)

        def on_allocate(size: int, device: int, stream: int | None) -> int:
            try:
                address = allocate(size)
                pool.segments[address] = size
            except BaseException as error:
                # nothing may pass through torch's C++ frames, an interrupt no more than an error
                self._refusal = error
                return 0
            return address

        def on_free(address: int, size: int, device: int, stream: int | None) -> None:
            # the allocator's mutex is held: only take note
            pool.returned.append((address, size))

        functions = _ALLOCATE(on_allocate), _FREE(on_free)
        pointers = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        allocator = self._torch._C._cuda_customAllocator(*pointers)
        _kept_alive.append((functions, allocator))
        _callbacks.update((on_allocate.__code__, on_free.__code__))
        pool.memory_pool = self._torch.cuda.MemPool(allocator)
        return pool

    def take_refusal(self) -> BaseException | None:
        """Return, once, why a callback gave no memory; None when none was asked for in vain.

        Called where torch's ``OutOfMemoryError`` is seen, to raise what its user has to know instead: that they were
        the one to interrupt, or who holds the memory.
        """
        refusal, self._refusal = self._refusal, None
        return refusal

    def watch_user_pools(self) -> None:
        """Notice from now on when the user's code uses a pool of its own: ours must not be begun on top of it."""
        cuda = self._torch.cuda
        original = cuda.use_mem_pool

        @contextlib.contextmanager
        @functools.wraps(original)
        def use_mem_pool(*args: Any, **kwargs: Any) -> Iterator[None]:
            with original(*args, **kwargs):
                self._num_user_pools += 1
                try:
                    yield
                finally:
                    self._num_user_pools -= 1

        cuda.use_mem_pool = cuda.memory.use_mem_pool = use_mem_pool

    @property
    def has_user_pool(self) -> bool:
        """Whether the user's code uses a pool of its own now."""
        return self._num_user_pools > 0

    # --- using a pool -----------------------------------

    def begin(self, pool: Pool) -> None:
        """Let all threads allocate from the pool from now on."""
        if pool.is_begun:
            raise InvalidMapping("the pool has begun already.")
        self._torch._C._cuda_beginAllocateToPool(self._device, pool.memory_pool.id)
        pool.is_begun = True
        self._begun.append(pool)

    def end(self, pool: Pool) -> None:
        """Let nothing more be allocated from the pool; its blocks stay. Does nothing if it has not begun."""
        if not pool.is_begun:
            return
        pool.is_begun = False
        self._begun.remove(pool)
        try:
            self._torch._C._cuda_endAllocateToPool(self._device, pool.memory_pool.id)
        finally:
            # begin counted a use; uncounted, the pool could never be freed
            self._torch._C._cuda_releasePool(self._device, pool.memory_pool.id)

    def drop(self, pool: Pool) -> None:
        """Let torch free a pool in which nothing lives; its segments are then in `returned`."""
        self.end(pool)
        pool.memory_pool = None

    def prime(self, pool: Pool, small_segments: int, large: int) -> None:
        """Let a pool that has begun own all its memory, so that no callback runs while a training does.

        Parameters
        ----------
        small_segments
            How many segments of 2 MiB for small blocks.
        large
            Bytes of the one segment for large blocks; 0: none.
        """
        with self._unseen():
            # two blocks of 1 MiB fill a segment; all are held at once, or the first would serve again
            blocks = [self._empty(1 << 20) for _ in range(2 * small_segments)]
            if large:
                blocks.append(self._empty(large))
            blocks.clear()

    # --- looking -----------------------------------

    def live_blocks(self, pools: Iterable[Pool]) -> list[tuple[int, int]]:
        """Return address and size of each block that is in use, or that a stream may still use."""
        blocks = []
        for pool in pools:
            if pool.memory_pool is None:
                continue
            for segment in pool.memory_pool.snapshot(include_traces=False):
                address = segment["address"]
                for block in segment["blocks"]:
                    address = block.get("address", address)
                    if block["state"] != _INACTIVE:
                        blocks.append((address, block["size"]))
                    address += block["size"]
        return blocks

    def synchronize(self) -> None:
        """Wait until nothing of this process runs on the device, on any stream."""
        self._torch.cuda.synchronize(self._device)

    def is_capturing(self) -> bool:
        """Return whether this thread's stream is being captured into a CUDA graph."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def process_events(self) -> None:
        """Let the allocator see which blocks the streams are done with: it looks whenever it allocates.

        All our pools are left for a moment, since torch 2.11 does not look inside of them, and since a pool that is
        full would ask for memory.
        """
        left = [] if self.has_user_pool else list(self._begun)
        try:
            for pool in reversed(left):
                self.end(pool)
            self._empty(_SMALLEST_BLOCK)
        finally:
            for pool in left:
                if not pool.is_begun:
                    self.begin(pool)

    def _empty(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._device}")


def is_called_back() -> bool:
    """Return whether torch's allocator is calling back in this thread: nothing may be done to a pool then.

    A signal's handler may run in the middle of a callback, and its own frames say so at every instruction, where a
    note that the callback makes of itself would be late or early by one.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code in _callbacks:
            return True
    return False


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
