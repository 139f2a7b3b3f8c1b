"""Programs are stopped as one and recorded first; who finds the record continues them, and nothing else."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.executor.processes.process_tree import all_children, read_stat, tree
from sharedkernel.executor.processes.programs import StoppedPrograms, resume_recorded, why_exempt
from tests.cli.support import wait_until

_PTRACE_SEIZE, _PTRACE_DETACH = 0x4206, 17

#: forks children that stay, up to 300 of them, as fast as it can
FORKS = """
import os, signal
print("ready", flush=True)
for _ in range(300):
    if not os.fork():
        signal.pause()
signal.pause()
"""


def state(pid: int) -> str:
    stat = read_stat(pid)
    return "X" if stat is None else stat.state


def test_a_program_that_forks_meanwhile_is_stopped_as_a_whole(tmp_path: Path) -> None:
    """No child gets away, and all of it continues."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        program.stdout.readline()

        def members() -> set[int]:
            return tree([program.pid], all_children())

        stopped = StoppedPrograms(tmp_path / "p")
        try:
            stopped.stop(members, os.getuid())
            caught = members()
            recorded = {int(line.split()[0]) for line in (tmp_path / "p").read_text().splitlines()}
            assert caught == recorded
            wait_until(lambda: all(state(pid) == "T" for pid in caught), "all of it is stopped")
            assert members() == caught
            stopped.resume()
            wait_until(lambda: all(state(pid) != "T" for pid in caught), "all of it runs")
            assert not (tmp_path / "p").exists()
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def test_what_cannot_be_recorded_or_others_have_stopped_is_left_alone(tmp_path: Path, sleepers: list[int]) -> None:
    """Nobody could continue the one after a crash; the other's user has stopped it, and it stays so."""
    sleeper = sleepers[0]
    stopped = StoppedPrograms(tmp_path / "missing" / "p")
    with pytest.raises(OSError, match="No such file"):
        stopped.stop(lambda: [sleeper], os.getuid())
    assert state(sleeper) != "T"
    os.kill(sleeper, signal.SIGSTOP)
    wait_until(lambda: state(sleeper) == "T", "it is stopped")
    stopped = StoppedPrograms(tmp_path / "p")
    stopped.stop(lambda: [sleeper], os.getuid())
    assert not stopped.any
    stopped.resume()
    assert state(sleeper) == "T"


def test_a_traced_process_is_left_alone(tmp_path: Path, sleepers: list[int]) -> None:
    """A debugger would see the signal."""
    sleeper = sleepers[0]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_SEIZE, sleeper, None, None):
        pytest.skip("this process may not trace others")
    assert why_exempt(sleeper, os.getuid()) == "a debugger is attached to it"
    stopped = StoppedPrograms(tmp_path / "p")
    stopped.stop(lambda: [sleeper], os.getuid())
    assert not stopped.any


def test_only_what_is_recorded_is_continued(tmp_path: Path, sleepers: list[int]) -> None:
    """A later process with the same id is another one."""
    sleeper = sleepers[0]
    stat = read_stat(sleeper)
    assert stat is not None
    os.kill(sleeper, signal.SIGSTOP)
    wait_until(lambda: state(sleeper) == "T", "it is stopped")
    (tmp_path / "p").write_text(f"{sleeper} {stat.started + 1}\n")
    (tmp_path / "q").write_text("what is this\n")
    resume_recorded(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert state(sleeper) == "T"
    (tmp_path / "p").write_text(f"{sleeper} {stat.started}\n")
    resume_recorded(tmp_path)
    wait_until(lambda: state(sleeper) != "T", "it runs")
    resume_recorded(tmp_path / "missing")
