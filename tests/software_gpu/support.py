"""What tests on the software GPU share."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
#: seconds that anything may take, on a busy machine
PATIENCE = 60.0


def is_here() -> bool:
    """Whether this process runs on a software GPU."""
    return "SOFTWARE_GPU_DIRECTORY" in os.environ


def run_python(code: str, **settings: object) -> str:
    """Return what a program prints in a process of its own, with other settings of the software GPU."""
    variables = {f"SOFTWARE_GPU_{key}": str(value) for key, value in settings.items()}
    command, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


@functools.cache
def trusted() -> Path:
    """Return a file by which executors take all steps of the self-test as passed, which takes each start ten seconds.

    It is of two devices, and of their MIG instances.
    """
    path = Path(os.environ["SOFTWARE_GPU_DIRECTORY"]) / "trust.json"
    for mig in (0, 1):
        run_python(f"from tests.software_gpu.support import trust; trust({str(path)!r})", DEVICES=2, MIG=mig)
    return path


def trust(path: str) -> None:
    """Write that all steps of the self-test have passed on each device that this process sees."""
    from sharedkernel.executor.devices.cuda.discovery import check_torch
    from sharedkernel.selftest.runner import Identity, TrustFile
    from sharedkernel.selftest.steps import STEPS
    from sharedkernel.system.nvml import Gpu, list_gpus

    for name in list_gpus():
        facts = Gpu(name).facts
        identity = Identity(driver=facts.driver_version, torch=check_torch(), card=facts.name, uuid=facts.uuid)
        TrustFile(Path(path)).record(identity, [step.name for step in STEPS])


def no_memory_left() -> Iterator[None]:
    """Let the tests of a module run, and check that other processes have no more device memory after them.

    A process that runs a failed test once more has the first run beside it, which may have a context.
    """

    def others_bytes() -> int:
        return used_bytes() - used_by_process().get(os.getpid(), 0)

    before = others_bytes()
    yield
    until(lambda: others_bytes() <= before, "all device memory of other processes is free")
