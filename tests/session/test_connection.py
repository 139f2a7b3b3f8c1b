"""A session's connection to its executor."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.session.connection import Link

#: what the link greets with here; an executor does not look at it
_GREETING = protocol.WantEarlier(question=1)
_OPENED = protocol.CellOpenedReport()

_FORK_WHILE_LOCKED = """if True:
    import os, threading
    from sharedkernel import protocol
    from sharedkernel.session.connection import Link

    link = Link("nowhere")
    locked, done = threading.Event(), threading.Event()

    def hold():
        with link.lock:
            locked.set()
            done.wait()

    threading.Thread(target=hold, daemon=True).start()
    locked.wait()
    child = os.fork()
    if not child:
        link.send(protocol.CellOpenedReport())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
"""


def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_will_release() -> None:
    """Another thread may have held it at the fork; the child has nothing to say in its parent's name anyway."""
    subprocess.run([sys.executable, "-c", _FORK_WHILE_LOCKED], check=True, timeout=60)


_WITHOUT_DESCRIPTORS = """if True:
    import os, resource, socket, sys, time
    from sharedkernel import protocol
    from sharedkernel.session.connection import RETRY_INTERVAL, Link

    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(30)
    listener.bind(sys.argv[1])
    listener.listen()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    link = Link(sys.argv[1])
    link.start(protocol.CellOpenedReport, print)
    time.sleep(5 * RETRY_INTERVAL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert listener.accept()[0].recv(1)
    os._exit(0)
"""


def test_a_session_that_can_open_no_files_reaches_its_executor_later(scratch: Path) -> None:
    """It tries again as it does where nobody listens."""
    subprocess.run([sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(scratch / "socket")], check=True, timeout=60)


class Listener:
    """An executor that only listens."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.bind(str(path))
        self._socket.listen()
        self._connection: socket.socket | None = None

    def hear(self, count: int) -> list[object]:
        """Return the next messages, *count* or a few more."""
        if self._connection is None:
            self._connection, _ = self._socket.accept()
            self._connection.settimeout(30)
            self._decoder = protocol.Decoder(protocol.ToExecutor)
        heard: list[object] = []
        while len(heard) < count:
            heard += self._decoder.feed(self._connection.recv(65536))
        return heard

    def say(self, message: protocol.Message) -> None:
        """Send *message* to the session."""
        assert self._connection is not None
        self._connection.sendall(protocol.encode(message))

    def hear_anew(self) -> list[object]:
        """Return the first messages of the next connection; nothing more is read of this one."""
        first, self._connection = self._connection, None
        assert first is not None
        with first:
            return self.hear(1)

    def hang_up(self) -> None:
        """Go away as an executor that crashes."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._socket.close()
        self.hang_up()


@pytest.fixture
def listener(scratch: Path) -> Iterator[Listener]:
    listener = Listener(scratch / "socket")
    yield listener
    listener.close()


@pytest.fixture
def link(listener: Listener, scratch: Path) -> Iterator[Link]:
    def handle(message: object) -> None:
        raise RuntimeError("can't start new thread")

    link = Link(str(scratch / "socket"))
    link.start(lambda: _GREETING, handle)  # type: ignore[arg-type, return-value]
    assert listener.hear(1) == [_GREETING]
    yield link
    link.close()


def closed(persistent: int) -> protocol.CellClosedReport:
    """Return what is said at the end of a cell."""
    return protocol.CellClosedReport(memory=protocol.Memory(persistent=persistent, ephemeral=None, framework=0))


def test_a_message_that_could_not_be_handled_ends_the_connection_alone(listener: Listener, link: Link) -> None:
    """The session greets its executor anew, and goes on."""
    listener.say(protocol.AskIdle())
    assert listener.hear_anew() == [_GREETING]


def test_a_session_does_not_wait_for_an_executor_that_reads_nothing(listener: Listener, link: Link) -> None:
    """It hangs up on it and greets it anew, which covers all that was sent before."""
    for _ in range(20):
        link.send(*[_OPENED] * 2000)
    assert listener.hear_anew()[0] == _GREETING


def test_short_cells_are_said_as_one_before_whatever_comes_next(listener: Listener, link: Link) -> None:
    """In their order, with the figures of the last one."""
    with link.lock:  # so that none of them is sent before the last
        for number in range(5):
            link.send_soon(_OPENED)
            link.send_soon(closed(number))
        assert link.has_waiting
        link.send(_GREETING)
    assert listener.hear(3) == [_OPENED, closed(4), _GREETING]


def test_the_beginning_of_a_long_cell_is_said_though_nothing_follows(listener: Listener, link: Link) -> None:
    """Soon, and each time."""
    for _ in range(3):
        link.send_soon(_OPENED)
        assert listener.hear(1) == [_OPENED]
        assert not link.has_waiting
        link.send(closed(0))
        assert listener.hear(1) == [closed(0)]


def test_what_an_executor_did_not_hear_is_not_said_to_the_next(listener: Listener, link: Link) -> None:
    """Its greeting says where the session stands."""
    with link.lock:
        link.send_soon(_OPENED)
        listener.hang_up()
        while link._socket is not None:  # until the link has noticed
            link.send(_GREETING)
        link.send_soon(_OPENED)
    assert listener.hear(1)[0] == _GREETING
    link.send(closed(1))
    assert closed(1) in listener.hear(1)
