"""Machines for tests of a cluster: network and process namespaces of this one, on a bridge."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.support import PATIENCE, processes_of, wait_until

#: the bridge, and the network on it; this machine has the first address
BRIDGE, NETWORK = "skbr0", "10.231.7."
#: process 1 of a machine: it reaps what others leave
_INIT = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, lambda *_: None)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
"""


def can_make_machines() -> bool:
    """Whether this account may make namespaces and a bridge."""
    probe = "ip link add skprobe0 type bridge && ip link del skprobe0"
    command = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", probe]
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return False


class Machine:
    """A machine of a test: this one, or namespaces of it.

    Everything on it ends with it.
    """

    def __init__(self, name: str, directory: Path, address: str = "127.0.0.1") -> None:
        self.name = name
        self.directory = directory
        self.address = address
        self.environment: dict[str, str] = {}
        self._prefix: list[str] = []
        self._started: list[subprocess.Popen[Any]] = []

    def command(self, *words: object) -> list[str]:
        return [*self._prefix, *map(str, words)]

    def start(self, *words: object, **options: Any) -> subprocess.Popen[Any]:
        """Start a command there, with its output in the machine's log."""
        with (self.directory / f"{self.name}.log").open("ab") as log:
            started = subprocess.Popen(
                self.command(*words),
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **options,
            )  # fmt: skip
        self._started.append(started)
        return started

    def run(self, *words: object, timeout: float = 4 * PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        return subprocess.run(
            self.command(*words),
            env=os.environ | self.environment,
            capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the machine's processes that have one of *words* on their command line; any without."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                line = " ".join(process.cmdline())
                if self._is_here(process) and (not words or any(word in line for word in words)):
                    found.append(process)
        return found

    def _is_here(self, process: psutil.Process) -> bool:
        environ = process.environ()
        return environ.get("SK_TEST_MACHINE") == f"{self.directory}/{self.name}"

    def end(self) -> None:
        """End everything on it; sessions have no variables of the test, but its directory among their files."""
        while found := [*self.processes(), *processes_of(self.directory)]:
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, PATIENCE)
        self.reap()

    def reap(self) -> None:
        """Wait for what was started here."""
        for started in self._started:
            started.kill()
            started.wait(PATIENCE)


class Namespaces(Machine):
    """A machine in namespaces of its own."""

    def __init__(self, number: int, directory: Path) -> None:
        super().__init__(f"h{number}", directory, f"{NETWORK}{number + 1}")
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", _INIT]
        )
        holder = psutil.Process(self._holder.pid)
        wait_until(holder.children, "the namespaces are there")
        self.init = holder.children()[0]
        # `unshare` forks before it mounts: a command that came earlier would see all processes.
        wait_until(lambda: sys.executable in " ".join(self.init.cmdline()), "process 1 runs")
        self._prefix = ["nsenter", "-t", str(self.init.pid), "-n", "-p", "-m", "--"]
        self._namespace = os.readlink(f"/proc/{self.init.pid}/ns/pid")
        link = f"skve{number}"
        self._setup("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self.init.pid))
        self._setup("ip", "link", "set", link, "master", BRIDGE, "up")
        self._setup(*self._prefix, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._setup(*self._prefix, "ip", "link", "set", "lo", "up")
        self._setup(*self._prefix, "ip", "link", "set", "eth0", "up")

    @staticmethod
    def _setup(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    def _is_here(self, process: psutil.Process) -> bool:
        return os.readlink(f"/proc/{process.pid}/ns/pid") == self._namespace

    def end(self) -> None:
        """End process 1, and with it everything there."""
        with contextlib.suppress(psutil.Error):
            self.init.kill()
        self._holder.wait(PATIENCE)
        self.reap()


@contextlib.contextmanager
def bridge() -> Any:
    """Have the bridge, and this machine on it; the test is skipped where no namespaces can be made."""
    if not can_make_machines():
        pytest.skip("no network and process namespaces can be made here")

    def remove() -> None:
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)

    remove()  # what a killed test has left
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", f"{NETWORK}1/24", "dev", BRIDGE], check=True)
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
        yield
    finally:
        remove()


def print_logs(directory: Path) -> None:
    """Print the ends of the logs of services and machines, for a test that fails."""
    for path in (*sorted(directory.glob("*.log")), *sorted(directory.glob("*/*.log"))):
        lines = path.read_text(errors="replace").splitlines()[-40:]
        sys.stdout.write("\n".join([f"--- {path}", *lines, ""]))
