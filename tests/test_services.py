"""Which process holds a lock, when it has ended, and how it is ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.services import RunningProcess, stop_process
from sharedkernel.system.lock_file import EXECUTOR_LOCK

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
            await asyncio.wait_for(found.ended(), PATIENCE)

        with pytest.raises(subprocess.TimeoutExpired):
            found.wait(0)
        asyncio.run(end())
        found.wait(0)
        process.wait(PATIENCE)
    found.send_signal(signal.SIGTERM)  # to nobody
    assert lock.read_text() == f"{process.pid}\n"
    assert RunningProcess.holding(lock) is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After its time, and the log says so."""
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_HOLDER}"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        found = RunningProcess.holding(tmp_path / EXECUTOR_LOCK)
        assert found is not None
        stop_process(found, "holder", timeout=0.1)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert "the holder did not end within 0.1 s of SIGTERM" in caplog.text


def test_a_file_that_nobody_locks_names_nobody(tmp_path: Path) -> None:
    """Whatever it says: its process ended, and the number may be another's by now."""
    lock = tmp_path / EXECUTOR_LOCK
    for content in ("", "1\n", "an executor\n"):
        lock.write_text(content)
        assert RunningProcess.holding(lock) is None
