"""A driver without a device: memory files instead of device memory, with the refusals of CUDA's driver.

It lets lanes be tested across real processes on any Linux machine, and tensors be laid over the mappings. Every rule in
:mod:`sharedkernel.device_memory.driver` that CUDA states is checked here, also where the operating system would
do without it, so that code that passes with this driver asks nothing of CUDA that it refuses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from sharedkernel.device_memory.driver import MIB, DeviceMemoryError, InvalidMapping, OutOfDeviceMemory, address_of

_PROT_NONE, _PROT_BOTH = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(slots=True, eq=False)
class MemfdHandle:
    """One piece of memory as this process knows it."""

    descriptor: int
    size: int
    is_released: bool = False


@dataclass(slots=True)
class _Mapping:
    size: int
    is_accessible: bool = False


class MemfdDriver:
    """Memory files as device memory."""

    #: sizes and addresses are multiples of this, in bytes; a multiple of the machine's page size
    granularity = 2 * MIB
    is_new_memory_clean = True
    must_be_idle_to_map = False

    def __init__(self) -> None:
        #: bytes created here and not released
        self.created = 0
        self._made_here: set[MemfdHandle] = set()
        #: start → end of each reserved range
        self._reserved: dict[int, int] = {}
        self._mappings: dict[int, _Mapping] = {}
        #: starts of the mappings, ascending
        self._starts: list[int] = []

    # --- physical memory -----------------------------------

    def create(self, size: int) -> MemfdHandle:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_multiple("size", size)
        descriptor = os.memfd_create("sharedkernel-unit", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise OutOfDeviceMemory(f"{size} bytes of memory cannot be had: {error.strerror}.") from error
        handle = MemfdHandle(descriptor, size)
        self._made_here.add(handle)
        self.created += size
        return handle

    def export(self, handle: MemfdHandle) -> int:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_alive(handle)
        return os.dup(handle.descriptor)  # not inheritable

    def import_(self, descriptor: int, size: int) -> MemfdHandle:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        try:
            actual = os.fstat(descriptor).st_size
        except OSError as error:
            raise InvalidMapping(f"descriptor {descriptor} is none: {error.strerror}.") from error
        if actual != size:
            raise InvalidMapping(f"descriptor {descriptor} is of {actual} bytes, not of {size}.")
        return MemfdHandle(os.dup(descriptor), size)

    def release(self, handle: MemfdHandle) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_alive(handle)
        handle.is_released = True
        os.close(handle.descriptor)
        if handle in self._made_here:
            self._made_here.remove(handle)
            self.created -= handle.size

    # --- addresses -----------------------------------

    def reserve(self, size: int) -> int:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_multiple("size", size)
        # mmap aligns to the machine's pages only: take more, and give back what is around
        step = self.granularity
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        taken = self._mmap(None, size + step, _PROT_NONE, flags, -1)
        start = (taken + step - 1) // step * step
        if start > taken:
            _libc.munmap(taken, start - taken)
        if taken + step > start:
            _libc.munmap(start + size, taken + step - start)
        self._reserved[start] = start + size
        return start

    def free(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        if self._reserved.get(address) != address + size:
            raise InvalidMapping(f"{size} bytes at {address:#x} are no reserved range.")
        if next(self._within(address, address + size), None) is not None:
            raise InvalidMapping(f"the range at {address:#x} cannot be freed while something is mapped in it.")
        del self._reserved[address]
        _libc.munmap(address, size)

    def map(self, address: int, size: int, handle: MemfdHandle, offset: int = 0) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_multiple("address", address)
        self._check_multiple("size", size)
        self._check_alive(handle)
        if offset:
            raise InvalidMapping(f"an offset of {offset} bytes into a handle cannot be mapped; it has to be 0.")
        if size != handle.size:
            raise InvalidMapping(f"a handle of {handle.size} bytes cannot be mapped as {size} bytes.")
        if not any(start <= address and address + size <= end for start, end in self._reserved.items()):
            raise InvalidMapping(f"{size} bytes at {address:#x} are not within a reserved range.")
        if next(self._within(address, address + size), None) is not None:
            raise InvalidMapping(f"something is mapped within the {size} bytes at {address:#x}.")
        self._mmap(address, size, _PROT_NONE, _MAP_SHARED | _MAP_FIXED, handle.descriptor)
        self._mappings[address] = _Mapping(size)
        insort(self._starts, address)

    def set_access(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        for _, mapping in self._whole(address, size):
            mapping.is_accessible = True
        if _libc.mprotect(address, size, _PROT_BOTH):
            raise DeviceMemoryError(f"access cannot be set: {os.strerror(ctypes.get_errno())}.")

    def unmap(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        whole = self._whole(address, size)
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(address, size, _PROT_NONE, flags, -1)
        for start, _ in whole:
            del self._mappings[start]
            del self._starts[bisect_left(self._starts, start)]

    # --- bytes -----------------------------------

    def copy(self, target: int, source: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_accessible(target, size)
        self._check_accessible(source, size)
        ctypes.memmove(target, source, size)

    def fill(self, address: int, size: int, byte: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_accessible(address, size)
        ctypes.memset(address, byte, size)

    def clear(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self.fill(address, size, 0)

    def read(self, host: memoryview, address: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_accessible(address, host.nbytes)
        ctypes.memmove(address_of(host), address, host.nbytes)

    def write(self, address: int, host: memoryview) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._check_accessible(address, host.nbytes)
        ctypes.memmove(address, address_of(host), host.nbytes)

    def host_buffer(self, size: int) -> MemoryBuffer:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        return MemoryBuffer(size)

    def synchronize(self) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`: there is nothing that runs by itself."""

    # --- the rules -----------------------------------

    def _check_multiple(self, what: str, value: int) -> None:
        if value <= 0 or value % self.granularity:
            raise InvalidMapping(f"{what} {value} is no multiple of the granularity of {self.granularity} bytes.")

    @staticmethod
    def _check_alive(handle: MemfdHandle) -> None:
        if handle.is_released:
            raise InvalidMapping("the handle was released.")

    def _within(self, start: int, end: int) -> Iterator[tuple[int, _Mapping]]:
        """Yield the mappings that reach into a range, by address."""
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._starts) and (at := self._starts[index]) < end:
            if at + self._mappings[at].size > start:
                yield at, self._mappings[at]
            index += 1

    def _whole(self, address: int, size: int) -> list[tuple[int, _Mapping]]:
        """Return the mappings that make up exactly this range."""
        found, reached = [], address
        for start, mapping in self._within(address, address + size):
            if start != reached:
                break
            found.append((start, mapping))
            reached += mapping.size
        if not found or reached != address + size:
            raise InvalidMapping(f"{size} bytes at {address:#x} are not one or several whole mappings.")
        return found

    def _check_accessible(self, address: int, size: int) -> None:
        reached = address
        for start, mapping in self._within(address, address + size):
            if start > reached or not mapping.is_accessible:
                break
            reached = start + mapping.size
        if reached < address + size:
            raise InvalidMapping(f"{size} bytes at {address:#x} are not all mapped and accessible.")

    @staticmethod
    def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
        result = _libc.mmap(address, size, protection, flags, descriptor, 0)
        if result == _FAILED:
            raise DeviceMemoryError(f"{size} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}.")
        return int(result)


class MemoryBuffer:
    """Ordinary host memory."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size))

    def close(self) -> None:
        """Free it, once no slice of it is left."""
        self.view.release()
