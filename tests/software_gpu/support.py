"""What tests on the software GPU share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
#: granularity of device memory
UNIT = 2 * MIB
#: seconds that anything may take, on a busy machine
PATIENCE = 60.0


def is_here() -> bool:
    """Whether this process runs on a software GPU."""
    return "SOFTWARE_GPU_DIRECTORY" in os.environ


def run_python(code: str, *arguments: str, **settings: object) -> str:
    """Return what a program prints in a process of its own, with other settings of the software GPU."""
    with start_python(code, *arguments, **settings) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return output


def start_python(code: str, *arguments: str, **settings: object) -> subprocess.Popen[str]:
    """Start a program as :func:`run_python` does."""
    variables = {f"SOFTWARE_GPU_{key}": str(value) for key, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        close_fds=False,
    )


@contextlib.contextmanager
def settings(**values: object) -> Iterator[None]:
    """Let processes that start meanwhile have other settings, also where the environment is not passed on.

    Sessions and their warm parent get none of the variables of their executor.
    """
    path = Path(os.environ["SOFTWARE_GPU_DIRECTORY"]) / "settings"
    before = path.read_text()
    path.write_text(before + "".join(f"{key}={value}\n" for key, value in values.items()))
    try:
        yield
    finally:
        path.write_text(before)


@contextlib.contextmanager
def _devices() -> Iterator[list[Any]]:
    """Yield NVML's handles of all devices."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def used_by_process() -> dict[int, int]:
    """Return the device memory of each process, in bytes, as NVML lists it."""
    import pynvml

    found: dict[int, int] = {}
    with _devices() as devices:
        for device in devices:
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
                found[process.pid] = found.get(process.pid, 0) + process.usedGpuMemory
    return found


class _Process(ctypes.Structure):
    """The beginning of `struct sg_process` in `native/device.h`, and the size of the rest."""

    _fields_ = (
        ("pid", ctypes.c_int),
        ("busy_ns", ctypes.c_int64),
        ("rest", ctypes.c_byte * (2 * 8 + 8 + 32 * 16)),
    )


class _Device(ctypes.Structure):
    """`struct sg_device` there."""

    _fields_ = (("used", ctypes.c_int64), ("busy_until", ctypes.c_int64), ("processes", _Process * 256))


def device_seconds() -> dict[int, float]:
    """Return for how long each process has used the first device, by its own counters."""
    find = ctypes.CDLL("libcuda.so.1").sg_device
    find.restype = ctypes.POINTER(_Device)
    return {process.pid: process.busy_ns / 1e9 for process in find(0).contents.processes if process.pid}


def used_bytes() -> int:
    """Return the device memory in use by all processes, as NVML counts it."""
    import pynvml

    with _devices() as devices:
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in devices)


def device_bytes() -> int:
    """Return the memory of the first device."""
    import pynvml

    with _devices() as devices:
        return int(pynvml.nvmlDeviceGetMemoryInfo(devices[0]).total)


def until(condition: Callable[[], bool], what: str) -> None:
    """Return once a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.01)


def trust_everything(path: Path) -> Path:
    """Write a file by which an executor takes all steps of the self-test as passed: each takes seconds here."""
    from sharedkernel.executor.devices.cuda.discovery import check_torch
    from sharedkernel.selftest.runner import Identity, TrustFile
    from sharedkernel.selftest.steps import STEPS
    from sharedkernel.system.nvml import Gpu

    gpu = Gpu("cuda:0")
    try:
        facts = gpu.facts
    finally:
        gpu.close()
    identity = Identity(driver=facts.driver_version, torch=check_torch(), card=facts.name, uuid=facts.uuid)
    TrustFile(path).record(identity, [step.name for step in STEPS])
    return path


def no_memory_left() -> Iterator[None]:
    """Let the tests of a module run, and check that other processes have no more device memory after them.

    A process that runs a failed test once more has the first run beside it, which may have a context.
    """

    def others_bytes() -> int:
        return used_bytes() - used_by_process().get(os.getpid(), 0)

    before = others_bytes()
    yield
    until(lambda: others_bytes() <= before, "all device memory of other processes is free")


class Driver:
    """The driver's calls through cuda-bindings: results without the status, errors as :class:`DriverError`."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.module = driver

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.module, name)

        def checked(*arguments: Any) -> Any:
            status, *results = call(*arguments)
            if status != self.module.CUresult.CUDA_SUCCESS:
                raise DriverError(status.name.removeprefix("CUDA_ERROR_"))
            return results[0] if len(results) == 1 else tuple(results) or None

        return checked

    def properties(self, device: int = 0) -> Any:
        """Return the properties of memory that can be shared."""
        properties = self.module.CUmemAllocationProp()
        properties.type = self.module.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self.module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        properties.requestedHandleTypes = self.descriptor_type
        return properties

    @property
    def descriptor_type(self) -> Any:
        """Return the type of handles that are file descriptors."""
        return self.module.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def access(self, device: int = 0) -> Any:
        """Return a description of access for reading and writing."""
        access = self.module.CUmemAccessDesc()
        access.location.type = self.module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = self.module.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access


class DriverError(Exception):
    """A call of the driver failed; the text is the error's name."""
