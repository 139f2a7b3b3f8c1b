"""A session that has threads and maps waits for its executor to raise its limit, and not for long."""

from __future__ import annotations

import resource

import pytest

from sharedkernel import protocol
from tests.session.harness import SessionUnderTest

START = """
import threading
def start(number):
    stop, running = threading.Event(), []
    try:
        for _ in range(number):
            thread = threading.Thread(target=stop.wait)
            thread.start()
            running.append(thread)
    finally:
        print(len(running))
        stop.set()
        for thread in running:
            thread.join()
"""


def test_threads_wait_for_a_higher_limit(session: SessionUnderTest) -> None:
    """What the session reports is what they take, and once they have ended that they take nothing.

    A limit that stays is the error that it was: the executor hangs, or has a reason; the session goes on with what it
    has.
    """
    session.run(START)
    session.limit(64 << 20)
    since = session.mark
    soft, hard = resource.prlimit(session.process.pid, resource.RLIMIT_DATA)
    request = session.client.execute("start(40)")
    first = session.wait_for(protocol.Reserved, since)
    resource.prlimit(session.process.pid, resource.RLIMIT_DATA, (soft + (400 << 20), hard))
    assert session.reply(request)["text"] == "40\n"
    most = session.wait_for(
        protocol.Reserved, since, where=lambda said: said.data_bytes > first.data_bytes + (200 << 20)
    )
    session.wait_for(protocol.Reserved, since, where=lambda said: said.data_bytes < most.data_bytes - (200 << 20))
    session.limit(64 << 20)
    reply = session.run("start(40)")
    assert reply["errors"] == ["RuntimeError"]
    assert int(reply["text"]) < 40
    assert session.run("import torch; print(torch.ones(1 << 20).sum().item())")["text"] == f"{float(1 << 20)}\n"


@pytest.mark.heavy
def test_a_map_that_cannot_be_made_is_reported_as_none(session: SessionUnderTest) -> None:
    """What was asked for it is taken back at once."""
    session.limit(256 << 20)  # room for both heaps to grow: without, small objects may fail before the map does
    since = session.mark
    reply = session.run("import mmap; mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE)")
    assert reply["errors"] == ["OSError"]
    asked = session.wait_for(protocol.Reserved, since)
    session.wait_for(protocol.Reserved, since, where=lambda said: said.data_bytes < asked.data_bytes - (7 << 30))
