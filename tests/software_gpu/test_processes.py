"""Forks and errors, as CUDA has them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.software_gpu.support import start_python, used_bytes

pytestmark = pytest.mark.software_gpu


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
