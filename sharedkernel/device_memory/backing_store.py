"""Where the bytes of offloaded memory stay meanwhile: host memory."""

from __future__ import annotations

import mmap

from sharedkernel.device_memory.errors import DeviceMemoryError


class BackingStoreFull(DeviceMemoryError):
    """There is no room to keep what was to be offloaded; it stays on the device."""

    reason = "shelter_full"


class BackingStore:
    """Host memory, taken as it is written; any thread may use it, one at a time.

    Parameters
    ----------
    size
        Bytes it can hold.

    Raises
    ------
    BackingStoreFull
        When they cannot be had.
    """

    def __init__(self, size: int) -> None:
        try:
            self._view = memoryview(mmap.mmap(-1, max(size, 1)))
        except OSError as error:
            raise BackingStoreFull(f"{size} bytes of host memory cannot be had: {error.strerror}.") from error

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes."""
        self._view[offset : offset + data.nbytes] = data

    def read(self, offset: int, into: memoryview) -> None:
        """Return bytes that were kept."""
        into[:] = self._view[offset : offset + into.nbytes]

    def close(self) -> None:
        """Forget them."""
        self._view.release()
