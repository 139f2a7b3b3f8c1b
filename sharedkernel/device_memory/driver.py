"""The calls of a driver that device memory is built from, and the errors of device memory.

Eight of them are the driver's virtual-memory calls; the rest copies, fills and waits. The rules are those of CUDA, and
`tests/device_memory/memfd.py` enforces them on memory files:

- sizes and addresses are multiples of the granularity;
- a handle is mapped as a whole: the offset is 0, so whatever may be remapped by itself needs a handle of its own;
- a mapping needs a reserved range without another mapping in it, and is inaccessible until its access is set;
- what is unmapped is one or several whole mappings, side by side;
- memory lives until every mapping, handle and descriptor of it is gone, in all processes.

A descriptor that was exported or is imported stays its caller's to close. Addresses and sizes are bytes. The text of
each error is one sentence that says what was wrong and what to do.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Protocol, TypeAlias

from sharedkernel.errors import SharedKernelError

log = logging.getLogger(__name__)

#: what a driver calls a piece of physical memory; opaque to everyone else
Handle: TypeAlias = Any

MIB = 1 << 20


class DeviceMemoryError(SharedKernelError):
    """A call about device memory failed; nothing was changed unless a subclass says otherwise."""

    reason = "device_memory"


class DriverUnavailable(DeviceMemoryError):
    """There is no driver here that can share memory between processes."""

    reason = "driver_unavailable"


class OutOfDeviceMemory(DeviceMemoryError):
    """The device has no memory left for this."""

    reason = "out_of_device_memory"


class DeviceFaulted(DeviceMemoryError):
    """The device cannot be used any more, or this process's context on it cannot."""

    reason = "device_lost"


class InvalidMapping(DeviceMemoryError):
    """A call breaks a rule of the driver: a bug of ours, never a user's."""

    reason = "invalid_mapping"


class LaneOccupied(DeviceMemoryError):
    """A lane was to change while an iteration uses it."""

    reason = "lane_occupied"


class ArenaBroken(DeviceMemoryError):
    """An error could not be undone: what this process has on the device is lost, and it has to end."""


class MemoryDriver(Protocol):
    """A device's memory as one process handles it.

    Every call raises a :class:`~sharedkernel.device_memory.driver.DeviceMemoryError`, and has then changed nothing.
    """

    #: sizes and addresses are multiples of this, in bytes
    granularity: int
    #: new memory reads as zeroes, even if another process used it before
    is_new_memory_clean: bool
    #: also to map, not only to unmap, this process must have nothing at work on the device
    must_be_idle_to_map: bool

    def create(self, size: int) -> Handle:
        """Allocate physical memory; `OutOfDeviceMemory` when there is none."""

    def export(self, handle: Handle) -> int:
        """Return a new descriptor of the memory; no program that this process starts inherits it."""

    def import_(self, descriptor: int, size: int) -> Handle:
        """Return a handle of another process's memory of *size* bytes."""

    def release(self, handle: Handle) -> None:
        """Give the handle up."""

    def reserve(self, size: int) -> int:
        """Reserve a range of addresses with nothing in it, and return its start."""

    def free(self, address: int, size: int) -> None:
        """Give a reserved range up, as a whole and with nothing mapped in it."""

    def map(self, address: int, size: int, handle: Handle, offset: int = 0) -> None:
        """Map a handle at an address, inaccessible at first."""

    def set_access(self, address: int, size: int) -> None:
        """Let the device read and write whole mappings."""

    def unmap(self, address: int, size: int) -> None:
        """Unmap whole mappings; the device must be idle in this process."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Start a copy on the device; :meth:`synchronize` waits for it."""

    def fill(self, address: int, size: int, byte: int) -> None:
        """Start to fill memory; :meth:`synchronize` waits for it."""

    def clear(self, address: int, size: int) -> None:
        """Fill memory that nobody uses yet with zeroes: done on return, whatever else is at work on the device."""

    def read(self, host: memoryview, address: int) -> None:
        """Copy as many bytes as *host* has from the device; they are there on return."""

    def write(self, address: int, host: memoryview) -> None:
        """Copy the bytes of *host*, which must be writable, to the device; *host* may be changed on return."""

    def host_buffer(self, size: int) -> HostBuffer:
        """Return host memory that the device copies to and from at full speed."""

    def synchronize(self) -> None:
        """Wait until this process has nothing at work on the device."""


class HostBuffer(Protocol):
    """Host memory for copies to and from the device."""

    #: the bytes
    view: memoryview

    def close(self) -> None:
        """Free it."""


def address_of(host: memoryview) -> int:
    """Return where writable host memory is."""
    return ctypes.addressof((ctypes.c_char * host.nbytes).from_buffer(host))


def release_handle(driver: MemoryDriver, handle: Handle) -> None:
    """Release a handle for good: a driver that fails in this is not asked again, which is only logged.

    What was released before and after it is counted all the same.
    """
    try:
        driver.release(handle)
    except DeviceMemoryError as error:
        log.warning("the driver may keep a unit of memory that nobody uses any more: %s", error)
