"""Signals reach the process that was forked, and never a later one with its id."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.ipc.helper_process import kill_peer
from sharedkernel.ipc.seqpacket import connect, listen
from tests.executor.devices.support import make_process

_SLEEP = ["sleep", "600"]
_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has an id which a session had before."""
    with subprocess.Popen(_SLEEP, start_new_session=True) as program:
        yield program
        program.kill()


@pytest.mark.parametrize("signum", _SIGNALS)
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_later_process_with_its_id_gets_no_signal(
    other: subprocess.Popen[bytes], signum: signal.Signals, is_watched: bool
) -> None:
    """Whether the session's end was noticed already, or its descriptor only says that it is gone."""
    with subprocess.Popen(["true"]) as ended:
        descriptor = os.pidfd_open(ended.pid)

    async def main() -> None:
        session = make_process(pid=other.pid)
        session.started -= 1
        session.pidfd = descriptor if is_watched else None
        session.send_signal(signum)
        assert not session.is_there()

    asyncio.run(main())
    os.close(descriptor)
    other.send_signal(signal.SIGIO)  # of several, the one with the smaller number would come first
    assert other.wait() == -signal.SIGIO


@pytest.mark.parametrize("signum", _SIGNALS)
@pytest.mark.parametrize("is_watched", [False, True])
def test_the_process_itself_gets_it(signum: signal.Signals, is_watched: bool) -> None:
    """By its descriptor, or where there is none by its id and start."""

    async def main(pid: int, descriptor: int) -> None:
        session = make_process(pid=pid)
        session.pidfd = descriptor if is_watched else None
        session.send_signal(signum)

    with subprocess.Popen(_SLEEP, start_new_session=True) as program:
        descriptor = os.pidfd_open(program.pid)
        asyncio.run(main(program.pid, descriptor))
        assert program.wait() == -signum
        os.close(descriptor)


def test_a_helper_that_has_hung_up_gets_no_signal(tmp_path: Path) -> None:
    """The id of the process at the other end, here this test's own, counts while that end is open."""
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, _: received.append(signum))
    path = f"{tmp_path}/helper.sock"
    listener = listen(path)
    connection = connect(path, int)
    accepted, _ = listener.accept()
    kill_peer(connection, signal.SIGUSR1)
    accepted.send(b"unread")
    accepted.close()
    kill_peer(connection, signal.SIGUSR1)
    connection.close()
    listener.close()
    signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1]
