"""A session's process: signals reach the one that was forked, and never a later one with its id; past waits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.executor.processes.process import PastWaits
from sharedkernel.ipc.helper_process import kill_peer
from sharedkernel.ipc.seqpacket import connect, listen
from tests.executor.devices.support import make_process


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("is_watched", [False, True])
def test_the_process_gets_it_and_no_later_one_with_its_id(signum: signal.Signals, is_watched: bool) -> None:
    """By its descriptor, or where there is none by its id and start.

    Whether a session's end was noticed already, or its descriptor only says that it is gone.
    """
    with subprocess.Popen(["true"]) as ended:
        gone = os.pidfd_open(ended.pid)

    async def main(pid: int, there: int) -> None:
        before, session = make_process(pid=pid), make_process(pid=pid)
        before.started -= 1
        before.pidfd, session.pidfd = (gone, there) if is_watched else (None, None)
        for other in (signal.SIGHUP, signal.SIGKILL):
            before.send_signal(other)
        assert not before.is_there()
        session.send_signal(signum)

    with subprocess.Popen(["sleep", "600"], start_new_session=True) as program:
        there = os.pidfd_open(program.pid)
        asyncio.run(main(program.pid, there))
        assert program.wait() == -signum
    os.close(gone)
    os.close(there)


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


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_numpys(waits: list[float]) -> None:
    """Between two waits where none is at the place itself; of the last waits only, after each of them."""
    past = PastWaits(200)
    for number, wait in enumerate(waits, start=1):
        past.add(wait)
        if number in (1, 2, len(waits)):
            p50, p95 = numpy.percentile(waits[max(0, number - 200) : number], (50, 95))
            assert past.percentiles() == (pytest.approx(p50), pytest.approx(p95))


def test_nobody_waited_yet() -> None:
    """There is no figure then, which is not the same as none to wait."""
    assert PastWaits(200).percentiles() == (None, None)
