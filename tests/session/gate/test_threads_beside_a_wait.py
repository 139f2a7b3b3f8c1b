"""Threads of a session go on computing while one of them waits for more memory, which asks for it again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from tests.session.harness import SessionUnderTest

MIB = 1 << 20
#: `needs` starts a thread that needs 286 MiB more than its session may have
_START = """\
import queue, threading, time
torch.set_num_threads(1)
small, results, steps, stopped = torch.ones(1000), queue.SimpleQueue(), 0, threading.Event()
def put(work):
    try: results.put(work())
    except BaseException as error: results.put(error)
def start(work):
    thread = threading.Thread(target=put, args=(work,))
    thread.start()
    return thread
def need(): return float(torch.ones(75_000_000).sum())
def compute():
    global steps
    while not stopped.is_set():
        small.sum()
        steps += 1
"""


class Withheld:
    """An executor that grants all but more memory, until it is told otherwise.

    Parameters
    ----------
    session
        Whose it is.
    """

    def __init__(self, session: SessionUnderTest) -> None:
        self._session = session
        #: what is done with a request for more memory
        self.answer: Callable[[protocol.DeviceWantedReport], None] = lambda wanted: None
        #: such requests until now
        self.num_asked = 0
        session.limit(128 * MIB)
        session.on_wanted = self._wanted

    def _wanted(self, wanted: protocol.DeviceWantedReport) -> None:
        if not wanted.growth:
            self._session.say(protocol.Granted())
            return
        self.num_asked += 1
        self.answer(wanted)

    def give(self, wanted: protocol.DeviceWantedReport) -> None:
        """Grant what a request wants."""
        self._session.limit(32 << 30)
        self._session.say(protocol.Granted())


@pytest.fixture
def session() -> Iterator[SessionUnderTest]:
    with SessionUnderTest() as session:
        assert session.run(_START)["status"] == "ok"
        yield session


def until_asked(session: SessionUnderTest, since: int) -> protocol.DeviceWantedReport:
    return session.wait_for(protocol.DeviceWantedReport, since, lambda wanted: wanted.growth > 0)


@pytest.mark.heavy
def test_a_cell_computes_while_a_thread_waits_for_memory(session: SessionUnderTest) -> None:
    """It runs to its end, and the thread then asks again."""
    withheld, since = Withheld(session), session.mark
    session.run("t = start(need)")
    until_asked(session, since)
    for _ in range(3):
        since = session.mark
        assert session.run("print(float(small.sum()), results.empty())")["text"] == "1000.0 True\n"
        wanted = until_asked(session, since)
    withheld.give(wanted)
    assert session.run("print(results.get(timeout=60))")["text"] == "75000000.0\n"


@pytest.mark.heavy
def test_a_thread_computes_while_a_cell_waits_for_memory(session: SessionUnderTest) -> None:
    withheld, since = Withheld(session), session.mark
    session.run("t = start(compute)")
    request = session.client.execute("print(need())")
    until_asked(session, since)
    since = session.mark
    until_asked(session, since)
    assert session.page.words[Word.THREADS] == 1
    withheld.answer = withheld.give
    assert session.reply(request)["text"] == "75000000.0\n"
    assert session.run("stopped.set(); t.join(); print(steps > 10)")["text"] == "True\n"


@pytest.mark.heavy
def test_nobody_is_given_way_to_while_room_is_made(session: SessionUnderTest, tmp_path: Path) -> None:
    """Others' memory would be moved for nothing."""
    withheld, since, late = Withheld(session), session.mark, tmp_path / "late"
    withheld.answer = lambda wanted: session.say(
        protocol.Waiting(reason="memory", position=1, is_room_coming=not late.exists())
    )
    session.run("t = start(need)")
    until_asked(session, since)
    # of the session's own, well after it would have given way
    session.run(f"threading.Timer(2.5, open, [{str(late)!r}, 'w']).start()")
    request = session.client.execute("print(float(small.sum()), results.empty())")
    while not late.exists():
        threading.Event().wait(0.02)
    assert "DeviceWantWithdrawn" not in session.kinds(since)
    session.say(protocol.Waiting(reason="memory", position=1))
    assert session.reply(request)["text"] == "1000.0 True\n"
    withheld.answer = withheld.give
    assert session.run("print(results.get(timeout=60))")["text"] == "75000000.0\n"


@pytest.mark.heavy
def test_a_refusal_ends_the_wait_and_an_interrupt_that_of_a_cell(session: SessionUnderTest) -> None:
    withheld, since = Withheld(session), session.mark
    session.run("t = start(compute)")
    request = session.client.execute("need()")
    until_asked(session, since)
    since = session.mark
    until_asked(session, since)
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"
    withheld.answer = lambda wanted: session.say(protocol.RefusedGrant(reason="memory", message="no room"))
    assert session.run("need()")["ename"] == "OutOfMemoryError"
    before = int(session.run("print(steps)")["text"])
    assert session.run(f"while steps <= {before}: time.sleep(0.01)\nstopped.set(); t.join()")["status"] == "ok"
