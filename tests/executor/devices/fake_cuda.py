"""A stand-in for `cuda.bindings.driver` with the calls that the executor makes, and the driver's refusals.

As the real module it answers with tuples that begin with a result, and raises RuntimeError for what the installed
driver library does not have.
"""

from __future__ import annotations

import os
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20

CUresult = IntEnum(
    "CUresult",
    {
        "CUDA_SUCCESS": 0,
        "CUDA_ERROR_INVALID_VALUE": 1,
        "CUDA_ERROR_OUT_OF_MEMORY": 2,
        "CUDA_ERROR_NOT_INITIALIZED": 3,
        "CUDA_ERROR_NO_DEVICE": 100,
        "CUDA_ERROR_NOT_PERMITTED": 800,
        "CUDA_ERROR_NOT_SUPPORTED": 801,
    },
)
CUdevice_attribute = IntEnum(
    "CUdevice_attribute",
    {
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103,
    },
)
R = CUresult


class FakeDriver:
    """One process's view of a driver with one device."""

    CUresult, CUdevice_attribute = CUresult, CUdevice_attribute
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)

    def __init__(self) -> None:
        self.initialized = False
        #: what the device's attributes are; 1 where nothing is said
        self.attributes: dict[int, int] = {}
        #: results that calls give instead of what they would do
        self.results: dict[str, CUresult] = {}
        #: calls that the driver library does not have
        self.missing: set[str] = set()
        self.handles: dict[int, int] = {}
        self.calls: list[str] = []

    def _call(self, name: str, *values: Any) -> tuple[Any, ...]:
        self.calls.append(name)
        if name in self.missing:
            raise RuntimeError(f'Function "{name}" not found')
        if not self.initialized and name != "cuInit":
            return (R.CUDA_ERROR_NOT_INITIALIZED, *(None for _ in values))
        if (result := self.results.get(name, R.CUDA_SUCCESS)) is not R.CUDA_SUCCESS:
            return (result, *(None for _ in values))
        return (R.CUDA_SUCCESS, *values)

    # --- memory -----------------------------------

    def CUmemAllocationProp(self) -> Any:
        return SimpleNamespace(type=0, location=SimpleNamespace(type=0, id=-1), requestedHandleTypes=0)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        answer = self._call("cuInit")
        self.initialized = answer[0] is R.CUDA_SUCCESS
        return answer

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return self._call("cuDeviceGetCount", 1)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return self._call("cuDeviceGet", ordinal)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Any, ...]:
        return self._call("cuDeviceGetAttribute", self.attributes.get(attribute, 1))

    def cuMemGetAllocationGranularity(self, properties: Any, option: int) -> tuple[Any, ...]:
        return self._call("cuMemGetAllocationGranularity", 2 * MIB)

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> tuple[Any, ...]:
        if size % (2 * MIB) or properties.requestedHandleTypes != 1 or properties.location.id != 0:
            return (R.CUDA_ERROR_INVALID_VALUE, None)
        answer = self._call("cuMemCreate", len(self.handles) + 1)
        if answer[0] is R.CUDA_SUCCESS:
            self.handles[answer[1]] = size
        return answer

    def cuMemExportToShareableHandle(self, handle: int, kind: int, flags: int) -> tuple[Any, ...]:
        if handle not in self.handles:
            return (R.CUDA_ERROR_INVALID_VALUE, None)
        answer = self._call("cuMemExportToShareableHandle", 0)
        return (answer[0], os.memfd_create("unit")) if answer[0] is R.CUDA_SUCCESS else answer

    def cuMemImportFromShareableHandle(self, descriptor: int, kind: int) -> tuple[Any, ...]:
        os.fstat(descriptor)  # the driver refuses what is no open descriptor
        answer = self._call("cuMemImportFromShareableHandle", len(self.handles) + 1)
        if answer[0] is R.CUDA_SUCCESS:
            self.handles[answer[1]] = 2 * MIB
        return answer

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        if handle not in self.handles:
            return (R.CUDA_ERROR_INVALID_VALUE,)
        del self.handles[handle]
        return self._call("cuMemRelease")
