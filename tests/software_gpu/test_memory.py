"""Device memory: its limit, whose it is, and that it comes back."""

from __future__ import annotations

import os
import signal

import pytest

from tests.software_gpu.support import (
    MIB,
    UNIT,
    Driver,
    DriverError,
    run_python,
    start_python,
    until,
    used_by_process,
    used_bytes,
)

pytestmark = pytest.mark.software_gpu

HOLD = """
import sys
import torch
kept = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


def test_torch_says_which_processes_have_the_memory() -> None:
    """It asks NVML in the oldest way, whose structures are smaller."""
    torch = pytest.importorskip("torch")
    torch.ones(1, device="cuda")
    with start_python(HOLD) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(torch.cuda.OutOfMemoryError, match=f"Process {process.pid} has [0-9.]+ MiB memory in use"):
            torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
        process.kill()


def test_more_than_the_device_has_is_out_of_memory() -> None:
    """An error of torch's own is raised its own error, with figures, and the next allocation works."""
    torch = pytest.importorskip("torch")
    total = torch.cuda.mem_get_info()[1]
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(total, dtype=torch.uint8, device="cuda")
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_one_capacity_serves_all_processes(driver: Driver) -> None:
    """What another process has cannot be had here."""
    with start_python(HOLD) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        free = driver.cuMemGetInfo()[0]
        with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
            driver.cuMemAlloc(free + UNIT)
        driver.cuMemFree(driver.cuMemAlloc(free))
        other.communicate("")


def test_memory_of_a_killed_process_comes_back() -> None:
    """Memory of a process that was killed is free without a cleanup step."""
    before = used_bytes()
    with start_python(HOLD) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert used_bytes() >= before + 64 * MIB
        other.send_signal(signal.SIGKILL)
        other.wait()
        until(lambda: used_bytes() == before, "its memory is free")


def test_nvml_lists_processes_with_their_memory(driver: Driver) -> None:
    """The two processes are listed with what each has; together they have what is used."""
    with start_python(HOLD) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        own = used_by_process()[os.getpid()]
        assert used_by_process()[other.pid] == 128 * MIB + 64 * MIB  # a context and the tensor
        address = driver.cuMemAlloc(10 * MIB)
        found = used_by_process()
        assert found[os.getpid()] == own + 10 * MIB
        assert sum(found.values()) == used_bytes()
        driver.cuMemFree(address)
        other.communicate("")


def test_nvml_and_the_driver_name_the_same_device(driver: Driver) -> None:
    """UUID, name and memory are the same."""
    pynvml = pytest.importorskip("pynvml")
    torch = pytest.importorskip("torch")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    properties = torch.cuda.get_device_properties(0)
    assert pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{properties.uuid}"
    assert pynvml.nvmlDeviceGetName(handle) == properties.name
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == properties.total_memory == driver.cuDeviceTotalMem(0)
    pynvml.nvmlShutdown()


def test_nvml_measures_who_uses_the_device() -> None:
    """A process that computes has a share of the time; an idle one has none."""
    pynvml = pytest.importorskip("pynvml")
    work = """if True:
        import sys, threading, torch
        x = torch.ones(8, device="cuda")
        threading.Thread(target=lambda: (sys.stdin.read(), stop.append(1)), daemon=True).start()
        stop = []
        print("ready", flush=True)
        while not stop:
            x.add_(1)
            torch.cuda.synchronize()
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def shares() -> dict[int, int]:
        try:
            return {sample.pid: sample.smUtil for sample in pynvml.nvmlDeviceGetProcessUtilization(handle, 0)}
        except pynvml.NVMLError_NotFound:
            return {}

    with start_python(work, KERNEL_US=2000) as busy, start_python(HOLD) as idle:
        for process in (busy, idle):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        until(lambda: shares().get(busy.pid, 0) > 20, "the busy process is seen")
        assert shares().get(idle.pid, 0) < 10
        busy.communicate("")
        idle.communicate("")
    pynvml.nvmlShutdown()


def test_a_context_takes_memory_when_it_is_first_used() -> None:
    """Initializing the driver takes none."""
    code = """if True:
        from tests.software_gpu.support import Driver, used_by_process
        import os
        driver = Driver()
        driver.cuInit(0)
        print(used_by_process().get(os.getpid(), 0))
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
        print(used_by_process()[os.getpid()])
    """
    assert run_python(code, CONTEXT="20M").split() == ["0", str(20 * MIB)]
