"""The figures of torch's CUDA allocator that a session's meter needs; nothing here makes a context by itself.

A session sees one GPU, as ``cuda:0``. Before its user's code first uses it there is no context, and all figures here
are 0: asking must not make one. Peaks are taken again and again, each for one iteration, while `torch.cuda`'s own
functions go on to show the user the peak since *their* last reset.

In plain mode only public functions of torch are called.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: the one GPU that a session sees
DEVICE = 0


@dataclass(frozen=True, slots=True)
class AllocatorBytes:
    """Bytes of torch's allocator."""

    #: in tensors
    allocated: int = 0
    #: most of that since peaks were last taken
    peak: int = 0
    #: held from the device, with what is kept for the next tensors
    reserved: int = 0


class TorchCuda:
    """Torch's allocator on this process's GPU.

    Parameters
    ----------
    torch
        The module, or what stands in for it.
    public_only
        Call public functions of torch alone.
    """

    def __init__(self, torch: Any, *, public_only: bool = False) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._public_only = public_only
        if public_only:
            self._stats, self._reset = self._cuda.memory_stats_as_nested_dict, self._cuda.reset_peak_memory_stats
        else:
            self._stats = getattr(torch._C, "_cuda_memoryStats", lambda device: {})
            self._reset = getattr(torch._C, "_cuda_resetPeakMemoryStats", lambda device: None)
        #: called, once, when CUDA is first used
        self._on_first_use: Callable[[], None] | None = None
        #: that was called
        self._is_in_use = False
        #: peaks taken since the user's last reset, as nested as torch has them
        self._kept: dict[str, Any] = {}
        #: peak that a reset of the user's would have hidden from us
        self._hidden = 0
        self._limit_bytes: int | None = None

    def install(self, on_first_use: Callable[[], None]) -> None:
        """Keep the user's view of peaks whole, and call *on_first_use* when CUDA is first used.

        That makes the context, so the main thread does it with a grant (:meth:`begin_use`), in which the context is
        charged; that torch is initialized makes none. Threads that pass no gate have no grant to wait for.
        """
        memory = self._cuda.memory
        for name, replace in (
            ("memory_stats_as_nested_dict", self._show_users_peaks),
            ("reset_peak_memory_stats", self._note_users_reset),
        ):
            replacement = replace(getattr(memory, name))
            for module in (memory, self._cuda):
                setattr(module, name, replacement)
        self._on_first_use = on_first_use
        if not self._public_only:
            self._cuda._lazy_call(self._initialized)

    def _initialized(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.begin_use()

    def begin_use(self) -> None:
        """Call what waits for CUDA's first use: an operation comes next."""
        if self._on_first_use is None:
            return
        on_first_use, self._on_first_use = self._on_first_use, None
        try:
            on_first_use()
        finally:
            self._is_in_use = True

    @property
    def is_used(self) -> bool:
        """Whether this process has a context, as far as its operations passed here."""
        return self._is_in_use and bool(self._cuda.is_initialized())

    def look(self) -> AllocatorBytes:
        """Return the figures of now (tens of microseconds)."""
        if not self.is_used:
            return AllocatorBytes()
        return self._figures(self._stats(DEVICE))

    def take(self) -> AllocatorBytes:
        """Return the figures of now, and start a new peak."""
        if not self.is_used:
            return AllocatorBytes()
        stats = self._stats(DEVICE)
        figures = self._figures(stats)
        self._kept = _larger_peaks(stats, self._kept)
        self._hidden = 0
        self._reset(DEVICE)
        return figures

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Let what is allocated meanwhile, and freed again, count in nobody's peak."""
        stats = self._stats(DEVICE)
        self._hidden = self._figures(stats).peak
        self._kept = _larger_peaks(stats, self._kept)
        try:
            yield
        finally:
            self._reset(DEVICE)

    def _figures(self, stats: dict[str, Any]) -> AllocatorBytes:
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return AllocatorBytes(
            int(allocated["current"]), max(int(allocated["peak"]), self._hidden), int(reserved["current"])
        )

    def synchronize(self) -> None:
        """Wait until nothing of this process runs on the device; not while a CUDA graph is captured: that forbids it.

        Raises
        ------
        RuntimeError
            When what ran on the device failed, as torch says it.
        """
        if self.is_used and not self._cuda.is_current_stream_capturing():
            self._cuda.synchronize(DEVICE)

    def limit(self, allowed_bytes: int | None, *, is_first_use: bool = False) -> None:
        """Let torch hold no more than *allowed_bytes* of the device; what it holds beyond that already stays.

        Parameters
        ----------
        allowed_bytes
            None: any number, since where its memory comes from there is a limit already.
        is_first_use
            Whether CUDA is used for the first time, and the context is there.
        """
        if not (self.is_used or is_first_use) or allowed_bytes == self._limit_bytes:
            return
        total = self._cuda.get_device_properties(DEVICE).total_memory
        if allowed_bytes is None:
            allowed_bytes = total
        self._cuda.set_per_process_memory_fraction(min(1.0, max(0.0, allowed_bytes / total)), DEVICE)
        self._limit_bytes = allowed_bytes

    def give_back(self) -> None:
        """Free what torch keeps for the next tensors."""
        if self.is_used and not self._cuda.is_current_stream_capturing():
            self._cuda.empty_cache()

    def free_bytes(self) -> int:
        """Return the free bytes of the whole device. Makes the context, if there is none."""
        return int(self._cuda.mem_get_info(DEVICE)[0])

    # --- the user's view of peaks -------------------------------------------------------------------------------------

    def _show_users_peaks(self, original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(original)
        def memory_stats_as_nested_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return _larger_peaks(original(*args, **kwargs), self._kept)

        return memory_stats_as_nested_dict

    def _note_users_reset(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def reset_peak_memory_stats(*args: Any, **kwargs: Any) -> None:
            self._hidden = self.look().peak
            self._kept = {}
            original(*args, **kwargs)

        return reset_peak_memory_stats


def _larger_peaks(stats: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Return *stats* with each peak at least as large as in *kept*."""
    result = dict(stats)
    for name, value in stats.items():
        before = kept.get(name)
        if isinstance(value, dict):
            result[name] = _larger_peaks(value, before or {})
        elif name == "peak" and before is not None:
            result[name] = max(value, before)
    return result


class RunAhead:
    """Bounds the work that one session's main thread has queued: to two iterations, by an event at each boundary.

    CUDA takes thousands of launches before any has run, and a session that is asked for the device has to wait until
    all of them are done.

    Parameters
    ----------
    cuda
        The module `torch.cuda`, or what stands in for it.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        #: events by turns: the one recorded last, and the one before that
        self._last: Any = None
        self._spare: Any = None

    def boundary_passed(self) -> None:
        """Wait until the device has come to the boundary before this one.

        Errors of what ran on the device are left to the user's next operation, which raises them.
        """
        if not self._cuda.is_initialized() or self._cuda.is_current_stream_capturing():
            return
        with contextlib.suppress(RuntimeError):
            event, before = self._spare or self._cuda.Event(), self._last
            event.record(self._cuda.current_stream(DEVICE))
            self._last, self._spare = event, before
            if before is not None:
                before.synchronize()
