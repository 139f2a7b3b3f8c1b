"""Torch's allocator over addresses of ours: memory pools whose segments come from callbacks.

Torch's caching allocator gives each pool segments, once asked for, and hands out blocks of them; it calls back for a
new segment only when no free block of the pool fits. The rules this module keeps:

- a callback runs while the allocator may hold its mutex, and takes Python's interpreter lock. So it calls nothing of
  torch, and takes an address from a list; only when there is none left does it ask for more, and that is safe only
  because ``release_lock_on_cudamalloc`` makes the allocator give its mutex up before it calls;
- no signal handler that would move memory does so within a callback (:func:`.is_called_back`): the sender has to repeat
  the signal. An interrupt ends a callback's wait for memory, and is raised where torch's error for it is seen;
- callbacks and pools live as long as the process: torch may call one long after the pool's last use;
- a pool begins for all threads of the process, so that backward's threads allocate from it as well. Every begin has
  its end, and every end is followed by a release, whatever fails between;
- inner pools win: a pool that the user, or a CUDA graph, begins later is used instead of ours;
- torch 2.11 behaves inside any pool as under graph capture. A block that another stream uses is not looked at again,
  and would be given away without a wait for that stream (:meth:`TorchPools.boundary_passed` waits).
  To destroy a pool, ours or a user's, aborts the process. So pools are destroyed only here, with all of ours left and
  none of the user's in use; until then they stay (:meth:`TorchPools.drop`, :meth:`TorchPools.watch_user_pools`).

The callback that frees a segment is a C function that does nothing: torch calls it with its mutex held, and Python's
interpreter lock must not be wanted there by one thread while another one has it and wants the mutex. What a pool gives
back is known when it is dropped: all it has.

What is torch's comes in as an argument, so that a model of its allocator can stand in where there is no device.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from signal import SIGINT
from traceback import clear_frames
from types import CodeType
from typing import Any

from cffi import FFI

from sharedkernel.device_memory.driver import DriverUnavailable, InvalidMapping
from sharedkernel.system.deferred_signals import FrameEnd, raise_after

log = logging.getLogger(__name__)
_ffi = FFI()
#: bytes, device, stream → address. A function that ctypes makes for C returns whatever it finds when its Python code
#: raises, and an interrupt may come before the first line there
_ALLOCATE = "uintptr_t(size_t, int, void *)"
#: what torch calls to free a segment: it only reads a constant, needs no interpreter lock, and ignores its arguments
_FREE = ctypes.pythonapi.Py_IsInitialized

#: C functions that torch may call for as long as the process lives
_kept_alive: list[Any] = []
#: the code that they run
_callbacks: set[CodeType] = set()


def make_allocator(torch: Any, on_allocate: Callable[[int, int, int | None], int]) -> Any:
    """Return an allocator of torch's that gets its segments from a callback, for the life of the process.

    Parameters
    ----------
    torch
        The module, or what stands in for it.
    on_allocate
        A Python function that gets a size in bytes, a device and a stream, and returns an address. Called in any
        thread. If it raises, torch gets no memory: it frees what it can, tries again, and raises ``OutOfMemoryError``
        in the end. After an interrupt another one comes as soon as torch returns, whatever it had in the end.
    """
    function = _ffi.callback(_ALLOCATE, on_allocate, error=0, onerror=_refuse)
    address = int(_ffi.cast("uintptr_t", function))
    allocator = torch._C._cuda_customAllocator(address, ctypes.cast(_FREE, ctypes.c_void_p).value)
    _kept_alive.append((function, allocator))
    _callbacks.add(on_allocate.__code__)  # type: ignore[attr-defined]
    return allocator


#: the last one that an interrupt waited for
_frame_ends: list[weakref.ref[FrameEnd]] = []


def _refuse(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Keep an error from torch's C++; an interrupt comes again when no line of Python is left before torch's."""
    frame_end = FrameEnd()
    is_interrupt = isinstance(error, KeyboardInterrupt)
    try:
        if not is_interrupt:
            log.info("torch gets no memory: %s", error)
        _end_frames(error)
    except KeyboardInterrupt:  # it came only now: what this function raises is lost
        is_interrupt = True
        _end_frames(error)
    if is_interrupt:
        _frame_ends[:] = [raise_after(frame_end, SIGINT)]


def _end_frames(error: BaseException) -> None:
    """End what the frames that *error* came through still hold.

    Otherwise it ends with the traceback, after the last line here. Whatever runs Python code at its end, such as an
    open file, would then be where the interrupt comes, and Python ignores errors there.
    """
    behind: BaseException | None = error
    while behind is not None:
        clear_frames(behind.__traceback__)
        behind = behind.__cause__ or behind.__context__


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


_increment = ctypes.pythonapi.Py_IncRef
_increment.argtypes = [ctypes.py_object]
_increment.restype = None

#: allocator settings that the callbacks rely on
SETTINGS = "release_lock_on_cudamalloc:True,expandable_segments:False"
#: what this module needs of `torch._C`
_NEEDED = (
    "_cuda_customAllocator", "_cuda_beginAllocateToPool", "_cuda_endAllocateToPool", "_cuda_releasePool",
    "_cuda_memorySnapshot", "_cuda_memoryStats",
)  # fmt: skip
#: a block of this allocator is a multiple of this many bytes
_SMALLEST_BLOCK = 512
#: seconds, and seconds of the process's own processor time, after which no thread is on its way to a callback of a
#: pool that was ended. A process that is stopped meanwhile, as its executor may do, has the first but not the second
_UNDER_WAY, _UNDER_WAY_BUSY = 1.0, 0.1
_INACTIVE = "inactive"


@dataclass(eq=False)
class Pool:
    """One pool of torch's."""

    memory_pool: Any
    #: torch's identifier; these very objects stay (:meth:`TorchPools.live_blocks`)
    number: tuple[int, int] = (0, 0)
    is_begun: bool = False
    #: start → size of the segments that torch has from the callbacks
    segments: dict[int, int] = field(default_factory=dict)
    #: of these, those that torch has been seen to have
    seen: set[int] = field(default_factory=set)
    #: threads in a callback
    num_callbacks: int = 0
    #: when it was ended, by both of :data:`_UNDER_WAY`'s clocks
    ended_at: tuple[float, float] = (0.0, 0.0)

    @property
    def may_be_called(self) -> bool:
        """Whether a thread may still be on its way to its callback."""
        since, since_busy = self.ended_at
        return time.monotonic() < since + _UNDER_WAY or time.process_time() < since_busy + _UNDER_WAY_BUSY

    @property
    def is_called_back(self) -> bool:
        """Whether a thread gets a segment for it now."""
        return self.num_callbacks > 0 or not self.seen.issuperset(list(self.segments))


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
    unnoticed
        Makes a context in which allocations are no operations of the user's, whose modes must not see them.
    has_threads
        Tells whether other threads may be allocating.
    """

    def __init__(
        self,
        torch: Any,
        device: int = 0,
        unseen: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        *,
        unnoticed: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        has_threads: Callable[[], bool] = lambda: False,
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
        self._unnoticed = unnoticed
        self._has_threads = has_threads
        #: the allocator does not look at events while a pool of ours is begun
        self._is_blind = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
        self._num_user_pools = 0
        #: CUDA graphs that are being captured, in any thread
        self._captures: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begun: list[Pool] = []
        #: pools that nobody else refers to any more, until they can be destroyed
        self._forgotten: list[Any] = []
        #: the thread that destroys pools now
        self._destroyer: int | None = None
        self._process = os.getpid()
        # torch.cuda's own name for it warns that it is deprecated
        set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (set_settings or torch.cuda.memory._set_allocator_settings)(SETTINGS)
        # from now on torch's own pool has a free block, for `process_events`
        self._empty(_SMALLEST_BLOCK)
        atexit.register(self._leave_at_exit)

    def make(self, allocate: Callable[[int], int]) -> Pool:
        """Make a pool.

        Parameters
        ----------
        allocate
            Given bytes, returns the address of a mapped range for a segment. Called in any thread. If it raises, torch
            frees what it has free, tries again, and raises ``OutOfMemoryError`` in the end. After an interrupt another
            one comes as soon as torch returns, whether or not it had memory in the end.
        """
        pool = Pool(None)

        def on_allocate(size: int, device: int, stream: int | None) -> int:
            pool.num_callbacks += 1
            try:
                address = allocate(size)
                pool.seen.discard(address)
                pool.segments[address] = size
            finally:
                pool.num_callbacks -= 1
            return address

        pool.memory_pool = self._torch.cuda.MemPool(make_allocator(self._torch, on_allocate))
        pool.number = pool.memory_pool.id
        return pool

    def watch_user_pools(self) -> None:
        """Notice from now on what the user's code does with pools of its own, and with CUDA graphs.

        Ours must not be begun on top of theirs. And a pool that nobody refers to any more is destroyed only once that
        is allowed: at the next boundary, or when the cache is emptied.
        """
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

        get_ident, getpid = threading.get_ident, os.getpid  # modules may be gone when the last pools are

        def forget(pool: Any) -> None:
            if self._destroyer != get_ident() and getpid() == self._process:
                self._forgotten.append(pool)  # so it lives on; Python calls this once only

        cuda.MemPool.__del__ = forget
        if hasattr(cuda, "CUDAGraph"):
            self._watch_captures(cuda.CUDAGraph)

    def _watch_captures(self, graphs: Any) -> None:
        original_begin, original_end = graphs.capture_begin, graphs.capture_end

        @functools.wraps(original_begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            self._captures.add(graph)
            try:
                original_begin(graph, *args, **kwargs)
            except BaseException:
                self._captures.discard(graph)
                raise

        @functools.wraps(original_end)
        def capture_end(graph: Any) -> None:
            try:
                original_end(graph)
            finally:
                self._captures.discard(graph)

        graphs.capture_begin, graphs.capture_end = capture_begin, capture_end

    @property
    def has_user_pool(self) -> bool:
        """Whether the user's code uses a pool of its own now."""
        return self._num_user_pools > 0

    # --- using a pool -----------------------------------

    def begin(self, pool: Pool) -> None:
        """Let all threads allocate from the pool from now on."""
        if pool.is_begun:
            raise InvalidMapping("the pool has begun already.")
        self._torch._C._cuda_beginAllocateToPool(self._device, pool.number)
        pool.is_begun = True
        self._begun.append(pool)

    def end(self, pool: Pool) -> None:
        """Let nothing more be allocated from the pool; its blocks stay. Does nothing if it has not begun."""
        if not pool.is_begun:
            return
        pool.is_begun = False
        pool.ended_at = time.monotonic(), time.process_time()
        self._begun.remove(pool)
        try:
            self._torch._C._cuda_endAllocateToPool(self._device, pool.number)
        finally:
            # begin counted a use; uncounted, the pool could never be freed
            self._torch._C._cuda_releasePool(self._device, pool.number)

    def drop(self, pool: Pool) -> bool:
        """Let torch destroy a pool in which nothing lives; return whether it has: if not, try again later.

        Not while a pool of the user's is in use or a CUDA graph is captured, nor as long as another thread may be on
        its way to a callback.
        """
        self.end(pool)
        if pool.is_called_back or not self._may_leave():
            return False
        if self._has_threads() and pool.may_be_called:
            return False
        with self._left():
            self._forgotten.append(pool.memory_pool)
            pool.memory_pool = None
            self._destroy_forgotten()
        return True

    def _destroy_forgotten(self) -> None:
        """Destroy pools that nobody refers to any more, with ours left."""
        self._destroyer = threading.get_ident()
        try:
            while self._forgotten:
                self._forgotten.pop()
        finally:
            self._destroyer = None

    def _may_leave(self) -> bool:
        return not self.has_user_pool and not self.is_capturing()

    @contextlib.contextmanager
    def _left(self) -> Iterator[None]:
        """Leave all our pools for a moment.

        Blocks that other streams use are then free without a wait, in torch 2.11, so the wait is here.
        """
        if self._has_used_blocks():
            self.synchronize()
        left = list(self._begun)
        try:
            for pool in reversed(left):
                self.end(pool)
            yield
        finally:
            for pool in left:
                if not pool.is_begun:
                    self.begin(pool)

    def _has_used_blocks(self) -> bool:
        """Whether there are blocks that were freed, and that other streams may still use."""
        stats = self._torch._C._cuda_memoryStats(self._device)
        return bool(stats["active_bytes"]["all"]["current"] > stats["allocated_bytes"]["all"]["current"])

    def _leave_at_exit(self) -> None:
        """Leave all our pools for good: Python destroys whatever is left."""
        if os.getpid() == self._process:
            for pool in list(self._begun):
                self.end(pool)

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
            for segment in self._snapshot(pool):
                address = segment["address"]
                pool.seen.add(address)
                for block in segment["blocks"]:
                    address = block.get("address", address)
                    if block["state"] != _INACTIVE:
                        blocks.append((address, block["size"]))
                    address += block["size"]
        return blocks

    def _snapshot(self, pool: Pool) -> list[dict[str, Any]]:
        # torch 2.11 drops a reference to each of these that it does not have; without our own they would be freed
        for argument in (*pool.number, False):
            _increment(argument)
        return list(self._torch.cuda.memory_snapshot(pool.number, include_traces=False))

    def synchronize(self) -> None:
        """Wait until nothing of this process runs on the device, on any stream."""
        self._torch.cuda.synchronize(self._device)

    def is_idle(self) -> bool:
        """Return whether nothing runs on the default stream (any thread); a capture is not disturbed."""
        try:
            return not self.is_capturing() and bool(self._torch.cuda.default_stream(self._device).query())
        except RuntimeError:  # the device is lost: the user's next operation says so
            return False

    def is_capturing(self) -> bool:
        """Return whether something is being captured into a CUDA graph."""
        return bool(self._captures) or bool(self._torch.cuda.is_current_stream_capturing())

    @property
    def has_put_off(self) -> bool:
        """Whether something is put off to a boundary."""
        return bool(self._forgotten) or (self._is_blind and self._has_used_blocks())

    def boundary_passed(self) -> None:
        """Do what was put off to a boundary."""
        if self._is_blind or self._forgotten:
            self.process_events()

    def process_events(self) -> None:
        """Let the allocator have back what other streams have used, and destroy pools that the user has forgotten.

        The allocator looks whenever it allocates, but torch 2.11 not inside of our pools. And a pool that is full would
        ask for memory. So all are left for a moment; nothing happens while one of the user's is in use.
        """
        if not self._may_leave():
            return
        has_used_blocks = self._has_used_blocks()
        if has_used_blocks or self._forgotten:
            with self._left():
                self._destroy_forgotten()
                if has_used_blocks:
                    self._empty(_SMALLEST_BLOCK)

    def _empty(self, size: int) -> Any:
        with self._unnoticed():
            return self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._device}")
