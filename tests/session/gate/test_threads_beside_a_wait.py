"""Threads of a session go on computing while one of them waits for more memory, which asks for it again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from tests.session.harness import SessionUnderTest, wait_until

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


def give(session: SessionUnderTest) -> Callable[[protocol.DeviceWantedReport], None]:
    """Return what grants a session as much memory as it wants."""

    def answer(wanted: protocol.DeviceWantedReport) -> None:
        session.limit(32 << 30)
        session.grant()

    return answer


@pytest.fixture
def session(session: SessionUnderTest) -> SessionUnderTest:
    """Return a session whose executor grants all but more memory, until it is told otherwise."""
    assert session.run(_START)["status"] == "ok"
    session.limit(128 * MIB)
    session.decide_growth(lambda wanted: None)
    return session


def until_asked(session: SessionUnderTest, since: int) -> protocol.DeviceWantedReport:
    return session.wait_for(protocol.DeviceWantedReport, since, lambda wanted: wanted.growth > 0)


@pytest.mark.heavy
def test_a_cell_computes_while_a_thread_waits_for_memory(session: SessionUnderTest) -> None:
    """It runs to its end, and the thread then asks again."""
    since = session.mark
    session.run("t = start(need)")
    until_asked(session, since)
    for _ in range(3):
        since = session.mark
        assert session.run("print(float(small.sum()), results.empty())")["text"] == "1000.0 True\n"
        wanted = until_asked(session, since)
    give(session)(wanted)
    assert session.run("print(results.get(timeout=60))")["text"] == "75000000.0\n"


@pytest.mark.heavy
def test_a_thread_computes_while_a_cell_waits_for_memory(session: SessionUnderTest) -> None:
    """An interrupt or a refusal ends that wait."""
    since = session.mark
    session.run("t = start(compute)")
    request = session.client.execute("need()")
    until_asked(session, since)
    since = session.mark
    until_asked(session, since)
    assert session.page.words[Word.THREADS] == 1
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"
    session.decide_growth(lambda wanted: session.say(protocol.RefusedGrant(reason="memory", message="no room")))
    refused = session.run("try: need()\nexcept torch.OutOfMemoryError as error: print(error)")
    assert refused["text"] == "no room\n"
    before = int(session.run("print(steps)")["text"])
    assert session.run(f"while steps <= {before} + 10: time.sleep(0.01)")["status"] == "ok"
    session.decide_growth(lambda wanted: None)
    since = session.mark
    request = session.client.execute("print(need()); stopped.set(); t.join()")
    until_asked(session, since)
    session.decide_growth(give(session))
    assert session.reply(request)["text"] == "75000000.0\n"


@pytest.mark.heavy
def test_nobody_is_given_way_to_while_room_is_made(session: SessionUnderTest, tmp_path: Path) -> None:
    """Others' memory would be moved for nothing."""
    since, late = session.mark, tmp_path / "late"
    session.decide_growth(
        lambda wanted: session.say(protocol.Waiting(reason="memory", position=1, is_room_coming=not late.exists()))
    )
    session.run("t = start(need)")
    until_asked(session, since)
    # of the session's own, well after it would have given way
    session.run(f"threading.Timer(2.5, open, [{str(late)!r}, 'w']).start()")
    request = session.client.execute("print(float(small.sum()), results.empty())")
    wait_until(late.exists)
    assert "DeviceWantWithdrawn" not in session.kinds(since)
    session.say(protocol.Waiting(reason="memory", position=1))
    assert session.reply(request)["text"] == "1000.0 True\n"
    session.decide_growth(give(session))
    assert session.run("print(results.get(timeout=60))")["text"] == "75000000.0\n"
