"""A stand-in for the module `pynvml` and the driver behind it, which refuses what they refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1 << 30


@dataclass
class FakeGpu:
    """One GPU, with what a test wants NVML to say about it."""

    uuid: str = "GPU-5ad1f0c2-0000-4000-8000-000000000001"
    name: str | bytes = "NVIDIA H200"
    total: int = 141 * GIB
    #: what the driver keeps to itself
    reserved: int = GIB
    used: int = 0
    percent: int = 0
    #: degrees Celsius, and milliwatts: what it draws and the most that it may; None: it has no such sensor
    temperature: int | None = 41
    power: int | None = 58_300
    power_limit: int | None = 72_000
    #: bytes by process; None is what NVML says where it cannot tell
    processes: dict[int, int | None] = field(default_factory=dict)
    mps_processes: dict[int, int | None] = field(default_factory=dict)
    #: (process, microseconds since the epoch, percent) of its use; None where the driver does not look at that
    use: list[tuple[int, int, int]] | None = field(default_factory=list)
    mig: bool | None = False
    #: of a GPU in MIG mode, by number; these have `use=None`, as NVML does not look at it
    instances: dict[int, FakeGpu] = field(default_factory=dict)
    lost: bool = False
    #: drivers before 510 lack the second version of memory figures
    has_second_version: bool = True


class FakeNvml:
    """The calls of `pynvml` that are used here; everything else of it is not there."""

    def __init__(self, *gpus: FakeGpu, init_error: int | None = None, is_blackwell: bool = False) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        #: these tell of processes' use by another call
        self.is_blackwell = is_blackwell
        self.opened = 0
        #: samples of instances' use that were not freed
        self.samples: list[Any] = []
        self._sampled: list[FakeGpu] = []
        #: GPUs before Hopper
        self.has_no_gpm = False

    def __getattr__(self, name: str) -> Any:
        if name in ("NVMLError", "NVML_SUCCESS", "c_nvmlGpmMetricsGet_t"):
            return getattr(pynvml, name)
        if name.startswith(("NVML_ERROR_", "NVML_GPM_", "nvmlMemory_v")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _gpu(self, handle: FakeGpu) -> FakeGpu:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if handle.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if not 0 <= index < len(self.gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._gpu(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for card in self.gpus:
            for gpu in (card, *card.instances.values()):
                if gpu.uuid == uuid:
                    return self._gpu(gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str | bytes:
        return self._gpu(handle).name

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return self._gpu(handle).uuid

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        if self._gpu(handle).mig is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(handle.mig))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return 7 if self._gpu(handle).mig else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeGpu:
        if index not in self._gpu(handle).instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle.instances[index]

    def nvmlDeviceIsMigDeviceHandle(self, handle: FakeGpu) -> int:
        return int(self._card(handle) is not None)

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeGpu) -> int:
        card = self._card(handle)
        assert card is not None
        return next(number for number, part in card.instances.items() if part is handle)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: FakeGpu) -> FakeGpu | None:
        return self._card(handle)

    def _card(self, handle: FakeGpu) -> FakeGpu | None:
        self._gpu(handle)
        return next((gpu for gpu in self.gpus if any(part is handle for part in gpu.instances.values())), None)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.samples.append(pynvml.c_nvmlGpmSample_t())
        return self.samples[-1]

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples.pop()

    def nvmlGpmMigSampleGet(self, card: FakeGpu, instance: int, sample: Any) -> None:
        if self.has_no_gpm:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._sampled = [card.instances[instance]]

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert asked.metrics[0].metricId == pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        asked.metrics[0].value = float(self._sampled[0].percent)
        return asked

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> Any:
        gpu = self._gpu(handle)
        if version is None:  # the first version counts the driver's own part as used
            used = gpu.used + gpu.reserved
            return SimpleNamespace(total=gpu.total, used=used, free=gpu.total - used)
        if not gpu.has_second_version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if version != pynvml.nvmlMemory_v2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        free = gpu.total - gpu.used - gpu.reserved
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=free, reserved=gpu.reserved)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        if self._card(handle) is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self._gpu(handle).percent, memory=0)

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return _supported(self._gpu(handle).temperature)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        return _supported(self._gpu(handle).power)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:
        return _supported(self._gpu(handle).power_limit)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        return _listed(self._gpu(handle).processes)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        return _listed(self._gpu(handle).mps_processes)

    def nvmlDeviceGetProcessUtilization(self, handle: FakeGpu, since: int) -> list[Any]:
        if self.is_blackwell:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._used(handle, since)

    def nvmlDeviceGetProcessesUtilizationInfo(self, handle: FakeGpu, since: int) -> list[Any]:
        if not self.is_blackwell:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._used(handle, since)

    def _used(self, handle: FakeGpu, since: int) -> list[Any]:
        use = self._gpu(handle).use
        if use is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent) for pid, at, percent in use if at > since]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found


def _supported(value: int | None) -> int:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _listed(processes: dict[int, int | None]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes.items()]
