"""Where the bytes of offloaded memory stay meanwhile: host memory, or a file in a private directory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from typing import Protocol

from sharedkernel.device_memory.errors import DeviceMemoryError


class BackingStoreFull(DeviceMemoryError):
    """There is no room to keep what was to be offloaded; it stays on the device."""

    reason = "shelter_full"


class BackingStore(Protocol):
    """Keeps bytes by offset. Several threads may read and write at a time, each other bytes."""

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes; `BackingStoreFull` when there is no room."""

    def read(self, offset: int, into: memoryview) -> None:
        """Return bytes that were kept."""

    def close(self) -> None:
        """Forget them."""


class HostBackingStore:
    """Host memory, taken as it is written.

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
        """See :class:`BackingStore`."""
        _copy(self._view[offset : offset + data.nbytes], data)

    def read(self, offset: int, into: memoryview) -> None:
        """See :class:`BackingStore`."""
        _copy(into, self._view[offset : offset + into.nbytes])

    def close(self) -> None:
        """See :class:`BackingStore`."""
        self._view.release()


class FileBackingStore:
    """A file without a name, in a directory: it is gone with the process, whatever ends it.

    Parameters
    ----------
    directory
        Private to the session's user.
    size
        Bytes it is to hold; the room is taken at once.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            if size:
                os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise BackingStoreFull(f"{directory} has no room for {size} bytes: {error.strerror}.") from error
            raise

    def write(self, offset: int, data: memoryview) -> None:
        """See :class:`BackingStore`."""
        done = 0
        while done < data.nbytes:
            try:
                done += os.pwrite(self._descriptor, data[done:], offset + done)
            except OSError as error:
                raise BackingStoreFull(f"offloaded memory cannot be written: {error.strerror}.") from error

    def read(self, offset: int, into: memoryview) -> None:
        """See :class:`BackingStore`."""
        done = 0
        while done < into.nbytes:
            count = os.preadv(self._descriptor, [into[done:]], offset + done)
            if not count:
                raise DeviceMemoryError("offloaded memory is shorter than what was written; its file was changed.")
            done += count

    def close(self) -> None:
        """See :class:`BackingStore`."""
        os.close(self._descriptor)


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of one writable memory to another of the same size, without the interpreter's lock."""
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes cannot be copied to {target.nbytes}.")
    if source.nbytes:
        first, second = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.byref(first), ctypes.byref(second), source.nbytes)
