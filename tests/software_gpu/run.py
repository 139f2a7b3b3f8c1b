"""Run a command on a software GPU of its own.

    python -m tests.software_gpu.run [--torch newest] [--devices 2] -- python -m pytest -m software_gpu

The run has a directory in shared memory, with the devices' memory and a virtual environment whose Python is the
command's `python`. When the command has ended, processes that it left and device memory that anybody still holds are
reported, and the run fails; the processes are ended and the directory is removed. What a run that was killed left is
removed by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.software_gpu.build import CHECKOUT, DEFAULT_TORCH, BuildError, Environment, build

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20
_PREFIX = "software-gpu-"
_CAPACITY = 1024 * MIB
#: least capacity that the tests can use
_LEAST_CAPACITY = 256 * MIB
#: seconds that processes have to end after the command
_GRACE = 15.0
_PR_SET_CHILD_SUBREAPER = 36
#: programs of the packages that the tests start by name
_PROGRAMS = ("jupyter", "sharedkernel")


class RunError(Exception):
    """Why nothing can be run, in one sentence."""


def default_capacity(devices: int = 1, *, most: int = _CAPACITY) -> int:
    """Return a capacity of each device, in bytes: *most*, or less where all would take over a quarter of what is free.

    Raises
    ------
    RunError
        When that is too little.
    """
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = int(found[1]) * 1024 if found else 0
    shared = os.statvfs(SHARED_MEMORY)
    capacity = min(most, min(free, shared.f_bavail * shared.f_frsize) // 4 // devices) // (2 * MIB) * (2 * MIB)
    if capacity < _LEAST_CAPACITY:
        raise RunError(
            f"A quarter of the free memory is {capacity // MIB} MiB for each device; "
            f"the software GPU needs {_LEAST_CAPACITY // MIB} MiB."
        )
    return capacity


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a directory for one run, and remove it; remove those of runs that were killed."""
    for left in SHARED_MEMORY.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (left / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end(_processes_in(left, with_descendants=False))
            shutil.rmtree(left, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=SHARED_MEMORY))
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def prepare(directory: Path, environment: Environment, settings: dict[str, str]) -> Path:
    """Write a run's settings and virtual environment into its directory; return the Python."""
    settings = {"OPERATIONS": str(environment.libraries / "liboperations.so"), **settings}
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (directory / "settings").write_text("".join(lines), encoding="utf-8")
    place = directory / "venv"
    venv.EnvBuilder(symlinks=True).create(place)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    shutil.copy(Path(__file__).with_name("startup.py"), packages / "_software_gpu.py")
    (packages / "_software_gpu.pth").write_text("import _software_gpu\n", encoding="ascii")
    places = {
        "directory": str(directory),
        "packages": [str(folder) for folder in environment.packages],
        "checkout": str(CHECKOUT),
        "libraries": [str(library) for library in environment.preloaded()],
    }
    (packages / "_software_gpu.json").write_text(json.dumps(places), encoding="utf-8")
    python = place / "bin" / "python"
    _write_programs(place / "bin", environment, python)
    return python


def _write_programs(folder: Path, environment: Environment, python: Path) -> None:
    """Write the commands of the packages, which were installed for no Python of their own."""
    for packages in environment.packages:
        for entry in packages.glob("*.dist-info/entry_points.txt"):
            for name, module, function in re.findall(r"^([\w-]+) *= *([\w.]+):(\w+)", entry.read_text(), re.MULTILINE):
                if name.startswith(_PROGRAMS):
                    _write_program(folder / name, python, module, function)
    _write_program(folder / "sharedkernel", python, "sharedkernel.cli.main", "main")


def _write_program(path: Path, python: Path, module: str, function: str) -> None:
    lines = ["#!/bin/sh", f"'''exec' {python} \"$0\" \"$@\"", "' '''", "import sys", f"from {module} import {function}"]
    path.write_text("\n".join([*lines, f"sys.exit({function}())", ""]), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(command: Sequence[str], directory: Path, python: Path) -> tuple[int, list[str]]:
    """Run a command; return its exit status, and one sentence for each thing that it left."""
    variables = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    variables |= {"SOFTWARE_GPU_DIRECTORY": str(directory), "VIRTUAL_ENV": str(python.parents[1])}
    variables.pop("PYTHONPATH", None)
    # what loses its parent becomes a child of this process, which so knows all that the command started
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    words = [str(python) if word == "python" else word for word in command]
    process = subprocess.Popen(words, env=variables, cwd=CHECKOUT)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    while True:
        try:
            status = _wait(process)
            break
        except KeyboardInterrupt:  # the terminal has sent it to the command, too
            continue
    return status, _clean_up(directory)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process; reap meanwhile what has lost its parent, as an init system does."""
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None:
        if found.si_pid == process.pid:
            return process.wait()
        os.waitpid(found.si_pid, 0)
    raise AssertionError("nothing is to be waited for")


def _clean_up(directory: Path) -> list[str]:
    deadline = time.monotonic() + _GRACE
    while (left := _processes_in(directory)) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    problems = [f"Process {pid} is left: {' '.join(_command_line(pid))[:200]}" for pid in left]
    _end(left)
    _reap()
    if held := _held_memory(directory):
        problems.append(f"{held >> 20} MiB of device memory are held by a process that is not of this run.")
    return problems


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _runs_from(pid: int, start: str) -> bool:
    """Return whether a process runs a program whose path begins with *start*; a session shows a title instead."""
    program = _command_line(pid)[0:1]
    if program and program[0].startswith("sharedkernel: "):
        with contextlib.suppress(OSError):
            return start in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return any(word.startswith(start) for word in program)


def _parent(pid: int) -> tuple[int, bool]:
    """Return a process's parent, and whether it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, True
    return int(fields[1]), fields[0] == "Z"


def _processes_in(directory: Path, *, with_descendants: bool = True) -> list[int]:
    """Return the living processes that run a program of a run's directory, or descend from this one."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    parents = {pid: _parent(pid) for pid in pids}

    def descends(pid: int) -> bool:
        while pid in parents and pid > 1:
            pid = parents[pid][0]
            if pid == os.getpid():
                return True
        return False

    start = f"{directory}/"
    return [
        pid
        for pid in pids
        if pid != os.getpid() and not parents[pid][1]
        and ((with_descendants and descends(pid)) or _runs_from(pid, start))
    ]  # fmt: skip


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GRACE
    while any(not _parent(pid)[1] for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _held_memory(directory: Path) -> int:
    """Return how many bytes of device memory somebody has a handle or mapping of; each has a locked file."""
    held = 0
    with contextlib.suppress(FileNotFoundError):
        for path in (directory / "memory").iterdir():
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    held += path.stat().st_size
    return held


def main() -> int:
    """Run a command on a software GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default=DEFAULT_TORCH, help="its version, or `newest`")
    parser.add_argument("--devices", type=int, default=1, help="how many")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; see README.md")
    parser.add_argument("command", nargs="+", help="`python` is the run's own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        environment = build(options.torch)
        settings = {"CAPACITY": str(default_capacity(options.devices)), "DEVICES": str(options.devices)}
        settings |= dict(setting.split("=", 1) for setting in options.set)
        with private_directory() as directory:
            python = prepare(directory, environment, settings)
            status, problems = run(options.command, directory, python)
    except (BuildError, RunError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201
    return status or (1 if problems else 0)


if __name__ == "__main__":
    sys.exit(main())
