"""A stand-in for the module `cuda.bindings.driver`: its shapes and names, over memory files."""

from __future__ import annotations

import ctypes
import enum
import os
import types
from typing import Any

from sharedkernel.device_memory.driver import InvalidMapping
from tests.device_memory.memfd import MemfdDriver


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_UNKNOWN = 999


class Attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103


class _Location:
    type = None
    id = -1


class _Properties:
    def __init__(self) -> None:
        self.type = self.requestedHandleTypes = None
        self.location = _Location()


class _Access:
    def __init__(self) -> None:
        self.location, self.flags = _Location(), None


class FakeCuda:
    """What of the module the driver uses."""

    CUresult = Result
    CUdevice_attribute = Attribute
    CUmemAllocationProp = _Properties
    CUmemAccessDesc = _Access
    CUmemAllocationHandleType = types.SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR="descriptor")
    CUmemAllocationType = types.SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemLocationType = types.SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationGranularity_flags = types.SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM="minimum")
    CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUmemAccess_flags = types.SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3, CU_MEM_ACCESS_FLAGS_PROT_NONE=0)

    def __init__(self) -> None:
        self.attributes = {Attribute(75): 9, Attribute(102): 1, Attribute(103): 1}
        self.calls: list[str] = []
        #: call → the error it answers
        self.answers: dict[str, Result] = {}
        #: what cuInit raises, as the bindings do without libcuda
        self.missing: BaseException | None = None
        self.context = 0
        self._memory = MemfdDriver()
        self._buffers: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self, f"_{name}")

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name in self.answers:
                return (self.answers[name], None)
            try:
                result = function(*arguments)
            except InvalidMapping:
                return (Result.CUDA_ERROR_INVALID_VALUE, None)
            return (Result.CUDA_SUCCESS,) if result is None else (Result.CUDA_SUCCESS, result)

        call.__name__ = name
        return call

    def _needs_context(self) -> None:
        assert self.context, "a call that needs a context came without one"

    def _cuInit(self, flags: int) -> None:
        if self.missing is not None:
            raise self.missing

    def _cuDeviceGetCount(self) -> int:
        return 1

    def _cuDeviceGet(self, number: int) -> int:
        return number

    def _cuDeviceGetAttribute(self, attribute: Attribute, device: int) -> int:
        if attribute not in self.attributes:
            raise InvalidMapping("an older driver")
        return self.attributes[attribute]

    def _cuMemGetAllocationGranularity(self, properties: _Properties, option: str) -> int:
        assert (properties.type, properties.requestedHandleTypes) == ("pinned", "descriptor")
        assert (properties.location.type, properties.location.id, option) == ("device", 0, "minimum")
        return self._memory.granularity

    def _cuCtxGetCurrent(self) -> int:
        return self.context

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 77

    def _cuCtxSetCurrent(self, context: int) -> None:
        self.context = context

    def _cuCtxSynchronize(self) -> None:
        self._needs_context()

    def _cuMemCreate(self, size: int, properties: _Properties, flags: int) -> Any:
        assert flags == 0
        return self._memory.create(size)

    def _cuMemExportToShareableHandle(self, handle: Any, kind: str, flags: int) -> int:
        assert (kind, flags) == ("descriptor", 0)
        return self._memory.export(handle)

    def _cuMemImportFromShareableHandle(self, descriptor: int, kind: str) -> Any:
        assert kind == "descriptor"
        return self._memory.import_(descriptor, os.fstat(descriptor).st_size)

    def _cuMemRelease(self, handle: Any) -> None:
        self._memory.release(handle)

    def _cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> int:
        assert (alignment, address, flags) == (self._memory.granularity, 0, 0)
        return self._memory.reserve(size)

    def _cuMemAddressFree(self, address: int, size: int) -> None:
        self._memory.free(address, size)

    def _cuMemMap(self, address: int, size: int, offset: int, handle: Any, flags: int) -> None:
        assert flags == 0
        self._memory.map(address, size, handle, offset)

    def _cuMemSetAccess(self, address: int, size: int, descriptions: list[_Access], count: int) -> None:
        (description,) = descriptions
        assert (description.location.type, description.location.id, count, description.flags) == ("device", 0, 1, 3)
        self._memory.set_access(address, size)

    def _cuMemUnmap(self, address: int, size: int) -> None:
        self._memory.unmap(address, size)

    def _cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._needs_context()
        self._memory.copy(target, source, size)

    def _cuStreamCreate(self, flags: int) -> int:
        assert flags == 1, "it would wait for other streams"
        return 7

    def _cuStreamSynchronize(self, stream: int) -> None:
        assert stream == 7

    def _cuMemsetD8Async(self, address: int, byte: int, size: int, stream: int) -> None:
        self._needs_context()
        self._memory.fill(address, size, byte)

    def _cuMemcpyDtoH(self, host: int, address: int, size: int) -> None:
        self._needs_context()
        self._memory.read(memoryview((ctypes.c_char * size).from_address(host)).cast("B"), address)

    def _cuMemcpyHtoD(self, address: int, host: int, size: int) -> None:
        self._needs_context()
        self._memory.write(address, memoryview((ctypes.c_char * size).from_address(host)).cast("B"))

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        self._needs_context()
        buffer = (ctypes.c_char * size)()
        self._buffers[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def _cuMemFreeHost(self, pointer: int) -> None:
        del self._buffers[pointer]
