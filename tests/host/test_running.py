"""Which process holds a lock, and when it has ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.host.running import RunningProcess
from sharedkernel.system.lock_file import EXECUTOR_LOCK
from sharedkernel.system.nvml import visible_gpus

#: seconds that anything here may take, on a busy machine
PATIENCE = 60.0
_HOLDER = """
import sys, time
from pathlib import Path
from sharedkernel.system.lock_file import lock_directory
descriptor = lock_directory(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_who_holds_a_lock_is_found_and_waited_for(tmp_path: Path) -> None:
    """An executor's lock says who runs, and its end is noticed."""
    lock = tmp_path / EXECUTOR_LOCK
    assert RunningProcess.holding(lock) is None
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        found = RunningProcess.holding(lock)
        assert found is not None
        assert found.pid == process.pid

        async def end() -> None:
            found.send_signal(signal.SIGTERM)
            await asyncio.wait_for(found.wait(), PATIENCE)

        asyncio.run(end())
        process.wait(PATIENCE)
    found.send_signal(signal.SIGTERM)  # to nobody
    found.close()
    assert lock.read_text() == f"{process.pid}\n"
    assert RunningProcess.holding(lock) is None


@pytest.mark.parametrize("content", ["", "1\n", "an executor\n"])
def test_a_file_that_nobody_locks_names_nobody(tmp_path: Path, content: str) -> None:
    """Whatever it says: its process ended, and the number may be another's by now."""
    lock = tmp_path / EXECUTOR_LOCK
    lock.write_text(content)
    assert RunningProcess.holding(lock) is None


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("", []),
        ("-1", []),
        ("3", ["cuda:0"]),
        ("GPU-5ad1f0c2, 1", ["cuda:0", "cuda:1"]),
        ("0,-1,1", ["cuda:0"]),
    ],
)
def test_gpus_are_those_that_cuda_shows(visible: str, names: list[str]) -> None:
    """Their numbers are those within `CUDA_VISIBLE_DEVICES`."""
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == names
