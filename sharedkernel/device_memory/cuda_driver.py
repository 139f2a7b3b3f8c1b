"""CUDA's virtual memory as a driver, by the package cuda-bindings.

The executor creates and exports, for which it needs no context on the device: only `cuInit` has run there. A session
imports, maps and copies in the device's primary context, which is torch's. Torch calls back from threads that may have
no current context; so each call that needs one makes the primary context current first.

What the driver answers becomes one of four errors: no memory, a broken rule of ours, memory that cannot be shared, or a
device that is lost to this process, by a fault of a CUDA kernel or of the hardware.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any

from sharedkernel.device_memory.driver import (
    DeviceFaulted,
    DeviceMemoryError,
    DriverUnavailable,
    Handle,
    InvalidMapping,
    OutOfDeviceMemory,
    address_of,
)
from sharedkernel.distribution import install_hint
from sharedkernel.system.atomic_file import closing_descriptor

#: what the device must have: attribute, and what it means for people
_NEEDED = {
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": "virtual memory management",
    "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": "memory that can be shared by descriptors",
}
#: from this compute capability on, mappings may be added while the device works
_MAPS_WHILE_WORKING = 8
#: errors after which nothing works any more in this process's context, by the end of their names
_LOST = frozenset((
    "NO_DEVICE", "INVALID_DEVICE", "DEVICE_UNAVAILABLE", "DEVICE_NOT_LICENSED", "SYSTEM_NOT_READY", "DEINITIALIZED",
    "CONTEXT_IS_DESTROYED", "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE",
    "INVALID_PC", "HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT", "CONTAINED",
    "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "MPS_CLIENT_TERMINATED",
))  # fmt: skip
_OUT_OF_MEMORY = "OUT_OF_MEMORY"
_UNSHAREABLE = frozenset(("NOT_SUPPORTED", "NOT_PERMITTED"))


def load_bindings() -> Any:
    """Return the module `cuda.bindings.driver`.

    Raises
    ------
    DriverUnavailable
        When it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DriverUnavailable(
            "the package cuda-bindings is not installed, so device memory cannot be shared; "
            f"install it with {install_hint('cuda')}."
        ) from error


class CudaDriver:
    """One CUDA device.

    Parameters
    ----------
    device
        Its number among those that this process sees.
    bindings
        The module `cuda.bindings.driver`; None: it is imported.

    Raises
    ------
    DriverUnavailable
        Where memory cannot be shared: no bindings, no driver, no such device, or one too old.
    """

    is_new_memory_clean = False

    def __init__(self, device: int = 0, bindings: Any = None) -> None:
        cuda = self._cuda = bindings or load_bindings()
        try:
            self._call(cuda.cuInit, 0)
        except DeviceMemoryError as error:
            raise DriverUnavailable(f"the NVIDIA driver cannot be used: {error}") from error
        except RuntimeError as error:
            # the bindings look for libcuda at their first call, and raise an error of their own
            raise DriverUnavailable(
                "no NVIDIA driver was found (libcuda is missing); install it, or use the device host."
            ) from error
        count = self._call(cuda.cuDeviceGetCount)
        if not 0 <= device < count:
            raise DriverUnavailable(f"there is no CUDA device {device}; this process sees {count}.")
        self._number = device
        self._device = self._call(cuda.cuDeviceGet, device)
        for name, meaning in _NEEDED.items():
            if not self._attribute(name):
                raise DriverUnavailable(
                    f"CUDA device {device} or its driver is too old for {meaning}; no memory is shared on it."
                )
        self.must_be_idle_to_map = self._attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR") < _MAPS_WHILE_WORKING
        self._kind = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._properties = cuda.CUmemAllocationProp()
        self._properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = device
        self._properties.requestedHandleTypes = self._kind
        option = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call(cuda.cuMemGetAllocationGranularity, self._properties, option))
        self._context: Any = None
        #: fills new memory
        self._stream: Any = None

    def check_sharing(self) -> None:
        """Create, export and import one unit: a sandbox may forbid what the device can do.

        Raises
        ------
        DriverUnavailable
            When it is forbidden.
        """
        try:
            handle = self.create(self.granularity)
            try:
                with closing_descriptor(self.export(handle)) as descriptor:
                    self.release(self.import_(descriptor, self.granularity))
            finally:
                self.release(handle)
        except DeviceMemoryError as error:
            raise DriverUnavailable(f"memory of CUDA device {self._number} cannot be shared here: {error}") from error

    def has_context(self) -> bool:
        """Return whether this thread has a context on a device; to create and to export takes none."""
        return bool(int(self._call(self._cuda.cuCtxGetCurrent)))

    # --- physical memory -----------------------------------

    def create(self, size: int) -> Handle:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        return self._call(self._cuda.cuMemCreate, size, self._properties, 0)

    def export(self, handle: Handle) -> int:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        descriptor = int(self._call(self._cuda.cuMemExportToShareableHandle, handle, self._kind, 0))
        os.set_inheritable(descriptor, False)
        return descriptor

    def import_(self, descriptor: int, size: int) -> Handle:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        return self._call(self._cuda.cuMemImportFromShareableHandle, descriptor, self._kind)

    def release(self, handle: Handle) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call(self._cuda.cuMemRelease, handle)

    # --- addresses -----------------------------------

    def reserve(self, size: int) -> int:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        return int(self._call(self._cuda.cuMemAddressReserve, size, self.granularity, 0, 0))

    def free(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call(self._cuda.cuMemAddressFree, address, size)

    def map(self, address: int, size: int, handle: Handle, offset: int = 0) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemMap, address, size, offset, handle, 0)

    def set_access(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._enter()
        description = self._cuda.CUmemAccessDesc()
        description.location.type = self._cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.location.id = self._number
        description.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call(self._cuda.cuMemSetAccess, address, size, [description], 1)

    def unmap(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemUnmap, address, size)

    # --- bytes -----------------------------------

    def copy(self, target: int, source: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemcpyDtoDAsync, target, source, size, 0)

    def fill(self, address: int, size: int, byte: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemsetD8Async, address, byte, size, 0)

    def clear(self, address: int, size: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`.

        On a stream of its own that waits for no other: on the default stream the fill would come after the work that
        is queued there, and wipe what another stream has written meanwhile.
        """
        self._enter()
        if self._stream is None:
            self._stream = self._call(self._cuda.cuStreamCreate, self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._call(self._cuda.cuMemsetD8Async, address, 0, size, self._stream)
        self._call(self._cuda.cuStreamSynchronize, self._stream)

    def read(self, host: memoryview, address: int) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemcpyDtoH, address_of(host), address, host.nbytes)

    def write(self, address: int, host: memoryview) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuMemcpyHtoD, address, address_of(host), host.nbytes)
        # from pinned memory it may return before the copy is done
        self._call(self._cuda.cuCtxSynchronize)

    def host_buffer(self, size: int) -> PinnedBuffer:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._enter()
        return PinnedBuffer(self, size)

    def synchronize(self) -> None:
        """See :class:`~sharedkernel.device_memory.driver.MemoryDriver`."""
        self._call_within(self._cuda.cuCtxSynchronize)

    # --- calling -----------------------------------

    def _attribute(self, name: str) -> int:
        """Return a device attribute; 0 when these bindings, or the driver, know none of that name."""
        attribute = getattr(self._cuda.CUdevice_attribute, name, None)
        if attribute is None:
            return 0
        try:
            return int(self._call(self._cuda.cuDeviceGetAttribute, attribute, self._device))
        except InvalidMapping:
            return 0

    def _enter(self) -> None:
        """Make the primary context current in this thread, if none is."""
        if self.has_context():
            return
        if self._context is None:
            self._context = self._call(self._cuda.cuDevicePrimaryCtxRetain, self._device)
        self._call(self._cuda.cuCtxSetCurrent, self._context)

    def _call_within(self, function: Any, *arguments: Any) -> Any:
        """Call the driver with the primary context current, if none is."""
        self._enter()
        return self._call(function, *arguments)

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call the driver; return what it returns besides its error code."""
        code, *results = function(*arguments)
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            raise self._error(function.__name__, code)
        return results[0] if results else None

    def _error(self, call: str, code: Any) -> DeviceMemoryError:
        name = str(getattr(code, "name", code)).removeprefix("CUDA_ERROR_")
        if name == _OUT_OF_MEMORY:
            return OutOfDeviceMemory("the device has no memory left.")
        if name in _LOST:
            return DeviceFaulted(f"the device cannot be used any more by this process ({name} in {call}); restart it.")
        if name in _UNSHAREABLE:
            return DriverUnavailable(f"the driver does not allow {call} here ({name}).")
        if name.startswith("INVALID_"):
            return InvalidMapping(f"the driver refused {call} ({name}).")
        return DeviceMemoryError(f"the driver failed in {call} ({name}).")


class PinnedBuffer:
    """Page-locked host memory of a :class:`CudaDriver`."""

    def __init__(self, driver: CudaDriver, size: int) -> None:
        self._driver = driver
        self._pointer = int(driver._call(driver._cuda.cuMemHostAlloc, size, 0))
        self.view = memoryview((ctypes.c_char * size).from_address(self._pointer)).cast("B")

    def close(self) -> None:
        """Free it."""
        self.view.release()
        self._driver._enter()
        self._driver._call(self._driver._cuda.cuMemFreeHost, self._pointer)
