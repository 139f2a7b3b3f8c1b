"""What a process that hangs is doing, as the system and a debugger see it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from tests.software_gpu.support import PATIENCE


def threads_of(pid: int) -> list[str]:
    """Return the names of a process's threads, and where in the kernel each waits."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [f"{(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()}" for task in tasks]


def signals_of(pid: int) -> str:
    """Return a process's signals, as masks: pending ones, and those that it blocks, ignores and catches."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return " ".join("".join(line.split()) for line in lines if line.startswith(("Sig", "ShdPnd", "State")))


def native_stacks(pid: int) -> str:
    """Return the C stacks of a process's threads, where gdb is installed."""
    if (gdb := shutil.which("gdb")) is None:
        return "no gdb to see C stacks with"
    command = [gdb, "--batch", "-p", str(pid), "-ex", "thread apply all backtrace 30"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE).stdout
    return "gdb took too long"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
