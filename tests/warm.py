"""Runtime directories whose warm parent lives on from one executor to the next.

To import torch takes longer than most tests, and a warm parent outlives its executor anyway: so a test's executor gets
one that an earlier test's has left, on a runtime directory in which there is nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from sharedkernel import protocol
from sharedkernel.ipc.helper_process import scrubbed_environment, wait_for_end
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.paths import (
    LOGS_DIRECTORY,
    RETIRED_SOCKETS,
    WARM_PARENT_SOCKET,
    make_private_directory,
)

_WARM_PARENT_LOG = "warm_parent.log"
#: seconds that killed processes may take to be reaped
_PATIENCE = 60.0
_free: list[WarmPlace] = []
_all: list[WarmPlace] = []
#: ends what is left when this process is killed
_watches: list[subprocess.Popen[str]] = []


class WarmPlace:
    """A runtime directory, and one for temporary files, for one executor at a time."""

    def __init__(self) -> None:
        #: short, as sockets' paths must be
        self.directory = Path(tempfile.mkdtemp(prefix="sk-"))
        self.runtime_directory = self.directory / "run"
        self.scratch = self.directory / "tmp"
        #: what a warm parent takes over from its executor
        self.environment = _environment()
        self._make()

    def clear(self) -> None:
        """Remove all that an executor has left but the warm parent; the executor itself has ended."""
        with self._reached(WARM_PARENT_SOCKET, protocol.FromWarmParent) as warm_parent:
            if warm_parent is not None:
                _end_children(warm_parent)
        for path in self.runtime_directory.glob(RETIRED_SOCKETS):  # the code was edited while tests ran
            self._quit(path.name)
        logs = self.runtime_directory / LOGS_DIRECTORY
        stay = {self.runtime_directory, self.runtime_directory / WARM_PARENT_SOCKET, logs, logs / _WARM_PARENT_LOG}
        for folder in (self.directory, self.runtime_directory, logs):
            for path in folder.glob("*"):
                if path not in stay:
                    _remove(path)
        with contextlib.suppress(FileNotFoundError):
            os.truncate(logs / _WARM_PARENT_LOG, 0)
        self._make()

    def end(self) -> None:
        """End the warm parent too, and remove everything."""
        self.clear()
        self._quit(WARM_PARENT_SOCKET)
        shutil.rmtree(self.directory)

    def _quit(self, name: str) -> None:
        with self._reached(name, protocol.FromWarmParent) as warm_parent:
            if warm_parent is not None:
                warm_parent.send(protocol.Quit())
                wait_for_end(warm_parent)

    def _make(self) -> None:
        make_private_directory(self.runtime_directory)
        self.scratch.mkdir()

    @contextlib.contextmanager
    def _reached(self, name: str, accepted: object) -> Iterator[PacketSocket | None]:
        try:
            connection = connect(str(self.runtime_directory / name), accepted)
        except OSError:
            yield None
            return
        try:
            yield connection
        finally:
            connection.close()


def take_place() -> WarmPlace:
    """Return a place that nobody uses; one that was used before if there is one for this environment."""
    for place in _free:
        if place.environment == _environment():
            _free.remove(place)
            return place
    _all.append(WarmPlace())
    _watch(_all[-1].directory)
    return _all[-1]


def give_back(place: WarmPlace) -> None:
    """Let others use a place whose executor has ended."""
    place.clear()
    _free.append(place)


def end_places() -> None:
    """End all of them; no executor runs on any."""
    while _all:
        _all.pop().end()
    _free.clear()
    while _watches:
        with _watches.pop():
            pass


def _watch(directory: Path) -> None:
    if not _watches:
        # a session of its own: a terminal's Ctrl-C is not for it
        command = [sys.executable, str(Path(__file__).with_name("left_places.py"))]
        _watches.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True))
    pipe = _watches[0].stdin
    assert pipe is not None
    print(directory, file=pipe, flush=True)


def _environment() -> dict[str, str]:
    return {name: value for name, value in scrubbed_environment().items() if name != "TMPDIR"}


def _end_children(warm_parent: PacketSocket) -> None:
    """End all sessions and spares; returns once they are reaped. The next executor takes note of their endings."""
    while children := psutil.Process(warm_parent.peer().pid).children():
        for child in children:
            for send in (os.killpg, os.kill):  # a group is there only once the child has made it
                with contextlib.suppress(ProcessLookupError):
                    send(child.pid, signal.SIGKILL)
        psutil.wait_procs(children, timeout=_PATIENCE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
