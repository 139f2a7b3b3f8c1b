"""Forks and errors, as CUDA has them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.software_gpu.support import run_python, start_python, used_bytes

pytestmark = pytest.mark.software_gpu


def test_a_forked_child_cannot_use_the_device() -> None:
    """The driver says so, and torch; the parent works on. Before the driver is initialized a fork does no harm."""
    code = """if True:
        import os, torch
        from tests.software_gpu.support import Driver, DriverError
        def fork(code):
            if os.fork() == 0:
                try:
                    print(code(), flush=True)
                except (RuntimeError, DriverError) as error:
                    print(type(error).__name__, str(error)[:40], flush=True)
                os._exit(0)
            os.wait()
        fork(lambda: torch.ones(3, device="cuda").sum().item())
        x = torch.ones(3, device="cuda")
        fork(lambda: x.sum().item())
        fork(lambda: torch.ones(3, device="cuda").sum().item())
        fork(lambda: Driver().cuMemGetInfo())
        fork(lambda: Driver().cuInit(0))
        print(x.sum().item())
    """
    before, used, made, driver, again, parent = run_python(code).splitlines()
    assert before == parent == "3.0"
    assert used.startswith(("AcceleratorError", "RuntimeError")), used
    assert made == "RuntimeError Cannot re-initialize CUDA in forked subp"
    assert driver == again == "DriverError NOT_INITIALIZED"


def test_an_illegal_access_ends_the_context() -> None:
    """A kernel's fault is seen when somebody waits for it, and by every call from then on."""
    code = """if True:
        import torch
        x = torch.ones(3, device="cuda")
        wild = torch.cuda._compile_kernel('extern "C" __global__ void wild() { *(int *)8 = 1; }', "wild")
        wild((1, 1, 1), (1, 1, 1), ())
        for attempt in (torch.cuda.synchronize, x.sum, lambda: torch.ones(1 << 30, device="cuda")):
            try:
                attempt()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
    """
    lines = run_python(code).splitlines()
    assert lines == ["CUDA error: an illegal memory access was encountered"] * 3


def test_a_fault_is_of_one_process() -> None:
    """Another process computes on the same device."""
    fault = """if True:
        import subprocess, sys, torch
        x = torch.ones(3, device="cuda")
        wild = torch.cuda._compile_kernel('extern "C" __global__ void wild() { *(int *)8 = 1; }', "wild")
        wild((1, 1, 1), (1, 1, 1), ())
        subprocess.run([sys.executable, "-c", "import torch; print(torch.ones(3, device='cuda').sum().item())"])
    """
    assert run_python(fault) == "3.0\n"


def test_a_process_that_is_stopped_keeps_nobody_out_of_the_driver() -> None:
    """Wherever in a call it was; it goes on when it is told to."""
    work = """if True:
        from tests.software_gpu.support import UNIT, Driver
        driver = Driver()
        driver.cuInit(0)
        print("ready", flush=True)
        while True:
            driver.cuMemRelease(driver.cuMemCreate(UNIT, driver.properties(), 0))
    """
    with start_python(work) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "ready\n"
        for _ in range(200):
            os.kill(stopped.pid, signal.SIGSTOP)  # not by Popen, which would wait for what the driver traces
            used_bytes()  # takes the lock
            os.kill(stopped.pid, signal.SIGCONT)
        stopped.kill()


def test_a_process_that_is_told_to_go_on_while_others_wait_for_it_goes_on() -> None:
    """It was stopped in a call, which another process has it finish at that moment."""
    work = """if True:
        import threading
        from tests.software_gpu.support import UNIT, Driver
        driver = Driver()
        driver.cuInit(0)
        def work():
            while True:
                driver.cuMemRelease(driver.cuMemCreate(UNIT, driver.properties(), 0))
        for _ in range(4):
            threading.Thread(target=work).start()
        print("ready", flush=True)
    """
    with start_python(work) as stopped, ThreadPoolExecutor(1) as waiting:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "ready\n"
        for tried in range(200):
            os.kill(stopped.pid, signal.SIGSTOP)
            used = waiting.submit(used_bytes)
            time.sleep(0.019 + tried % 20 * 0.0002)  # they wait for 20 ms before they look who has the lock
            os.kill(stopped.pid, signal.SIGCONT)
            used.result()
            state = Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state != "T", f"stopped in round {tried}"
        stopped.kill()
