"""The backing store of offloaded memory: host memory."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from sharedkernel.device_memory.errors import DeviceMemoryError


class BackingStoreFull(DeviceMemoryError):
    """There is no room to keep what was to be offloaded; it stays on the device."""

    reason = "shelter_full"


class BackingStore:
    """Host memory, taken as it is written; several threads may use it at a time, each for other bytes.

    Most of the time of a first write goes to page faults, so the pages are huge where the kernel has such. Other
    threads run meanwhile: a slice of a memoryview would be copied with the interpreter's lock held.

    Parameters
    ----------
    size
        Bytes it can hold.
    """

    def __init__(self, size: int) -> None:
        try:
            memory = mmap.mmap(-1, max(size, 1))
        except OSError as error:
            raise BackingStoreFull(f"{size} bytes of host memory cannot be had: {error.strerror}.") from error
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(memory)

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes."""
        _copy(self._view[offset : offset + data.nbytes], data)

    def read(self, offset: int, into: memoryview) -> None:
        """Return bytes that were kept."""
        _copy(into, self._view[offset : offset + into.nbytes])

    def close(self) -> None:
        """Forget them."""
        self._view.release()


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of one writable memory to another of the same size, without the interpreter's lock."""
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes cannot be copied to {target.nbytes}.")
    if source.nbytes:
        first, second = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.byref(first), ctypes.byref(second), source.nbytes)
