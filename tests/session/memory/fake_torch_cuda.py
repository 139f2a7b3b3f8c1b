"""A stand-in for torch's CUDA functions: an allocator that counts, and refuses what torch refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class FakeTorch:
    """What of the module `torch` a session's meter uses, for one device.

    Tests allocate and free by :meth:`allocate` and :meth:`free`; blocks that are freed stay reserved, as torch keeps
    them.
    """

    def __init__(self, total: int = 141 * GIB, context: int = GIB // 2) -> None:
        self.total = total
        #: taken from the device when CUDA is first used
        self.context = context
        #: held on the device by other processes
        self.others = 0
        self.initialized = False
        self.capturing = False
        #: what a failed CUDA kernel left: raised by everything that waits for the device
        self.failure: str | None = None
        self.waits = 0
        self.allocated = self.peak = self.reserved = 0
        self.fraction = 1.0
        self._lazy: list[Callable[[], None]] = []
        self._initializing = False
        self._C = SimpleNamespace(
            _cuda_memoryStats=self._memory_stats, _cuda_resetPeakMemoryStats=self._reset_peak_memory_stats
        )
        functions: dict[str, Any] = {
            name: getattr(self, f"_{name}")
            for name in (
                "synchronize", "empty_cache", "mem_get_info", "get_device_properties",
                "set_per_process_memory_fraction",
            )
        }  # fmt: skip
        functions |= {"is_initialized": lambda: self.initialized, "is_current_stream_capturing": lambda: self.capturing}
        nested = {
            "memory_stats_as_nested_dict": lambda device=None: self._memory_stats(0) if self.initialized else {},
            "reset_peak_memory_stats": lambda device=None: self._reset_peak_memory_stats(0),
        }
        self.cuda = SimpleNamespace(**functions, **nested, memory=SimpleNamespace(**nested), _lazy_call=self._lazy_call)

    # --- what user code does -----------------------------------

    def use(self) -> None:
        """Use CUDA for the first time, in this thread: what was put off until then is called."""
        self._initializing = True
        for callback in self._lazy:
            callback()
        self._initializing = False
        self.initialized = True

    def allocate(self, size: int) -> None:
        """Allocate a tensor of *size* bytes."""
        assert self.initialized, "torch initializes CUDA before it allocates"
        grows = max(0, self.allocated + size - self.reserved)
        if self.reserved + grows > self.fraction * self.total:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {size / (1 << 20):.2f} MiB. GPU 0 has …")
        self.allocated += size
        self.reserved += grows
        self.peak = max(self.peak, self.allocated)

    def free(self, size: int) -> None:
        """Free a tensor."""
        assert size <= self.allocated
        self.allocated -= size

    # --- torch -----------------------------------

    def _lazy_call(self, callback: Callable[[], None]) -> None:
        self._lazy.append(callback)

    def _has_context(self) -> bool:
        return self.initialized or self._initializing

    def _memory_stats(self, device: int) -> dict[str, Any]:
        assert device == 0
        assert self.initialized, "torch has no figures before CUDA is initialized"
        one = {"current": self.allocated, "peak": self.peak}
        return {
            "allocated_bytes": {"all": one, "large_pool": dict(one)},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved}},
            "num_ooms": 0,
        }

    def _reset_peak_memory_stats(self, device: int) -> None:
        self.peak = self.allocated

    def _check(self) -> None:
        assert self.initialized, "this would make a context"
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.failure is not None:
            raise RuntimeError(self.failure)

    def _synchronize(self, device: int) -> None:
        self._check()
        self.waits += 1

    def _empty_cache(self) -> None:
        self._check()
        self.reserved = self.allocated

    def _mem_get_info(self, device: int) -> tuple[int, int]:
        if not self._has_context():
            self.use()
        return self.total - self.context - self.reserved - self.others, self.total

    def _get_device_properties(self, device: int) -> Any:
        assert self._has_context()
        return SimpleNamespace(total_memory=self.total)

    def _set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert self._has_context(), "this would initialize CUDA"
        if not isinstance(fraction, float) or not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self.fraction = fraction
