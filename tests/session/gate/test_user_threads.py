"""Threads of the user's compute behind the gate: they wait, grow, yield, are refused and moved out as cells are."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.gate.user_threads import UserThreads
from tests.session.harness import SessionUnderTest

MIB = 1 << 20
#: starts `thread`, which computes `result` of `kept`, and says when it has begun
_START = """\
import _thread, queue, sys, threading, time
torch.set_num_threads(1)
kept = torch.arange(1 << 20, dtype=torch.float64)
errors, begun, results = [], threading.Event(), queue.SimpleQueue()
threading.excepthook = lambda args: errors.append(args.exc_value)
def start(work):
    def run():
        begun.set()
        results.put(work())
    begun.clear()
    while not results.empty(): results.get()
    thread = threading.Thread(target=run, name="mine")
    thread.start()
    begun.wait()
    return thread
def total(): return float((kept * 2).sum())
def forever():
    global steps
    steps, stop.is_set = 0, False
    while not stop.is_set:
        torch.ones(1000).sum()
        steps += 1
stop = type("Stop", (), {"is_set": False})()
"""
#: to being asked to move memory away
ANSWERS = (protocol.OffloadedReport, protocol.OffloadDeclinedReport)
TOTAL = float(2 * sum(range(1 << 20)))


@pytest.fixture
def session(session: SessionUnderTest) -> Iterator[SessionUnderTest]:
    session.run(_START)
    yield session
    session.on_wanted = session.grant
    session.page.words[Word.PREEMPT] = 0
    session.grant()
    session.run("stop.is_set = True\nif 'go' in globals(): go.set()")
    reply = session.run("for t in threading.enumerate():\n    if t.name == 'mine': t.join()")
    assert reply["status"] == "ok", reply


def wanted(session: SessionUnderTest) -> threading.Event:
    """Withhold grants from now on; the event says that one was asked for."""
    asked = threading.Event()
    session.on_wanted = lambda wanted: asked.set()
    return asked


def started(session: SessionUnderTest, work: str = "total") -> threading.Event:
    """Withhold grants, and return once a thread asks for one."""
    asked, since = wanted(session), session.mark
    assert session.run(f"t = start({work})")["status"] == "ok"
    session.wait_for(protocol.DeviceWantedReport, since)
    return asked


@contextlib.contextmanager
def preempted_often(session: SessionUnderTest) -> Iterator[None]:
    """Ask for the device again and again in the body."""
    stop = threading.Event()

    def preempt() -> None:
        while not stop.wait(0.02):
            session.page.words[Word.PREEMPT] = 1

    thread = threading.Thread(target=preempt)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        session.page.words[Word.PREEMPT] = 0


def answer_to_offload(session: SessionUnderTest) -> protocol.Message:
    """Ask for the session's memory until it is not busy, as while a cell opens, or the reply to one has just come."""
    while True:
        since = session.mark
        session.say(protocol.OffloadCommand())
        report = session.wait_for(protocol.Message, since, lambda it: isinstance(it, ANSWERS))
        if not isinstance(report, protocol.OffloadDeclinedReport) or report.reason != "busy":
            return report


def move_out(session: SessionUnderTest) -> protocol.OffloadedReport:
    """Ask for the session's memory until it is away."""
    report = answer_to_offload(session)
    assert isinstance(report, protocol.OffloadedReport)
    return report


def result(session: SessionUnderTest) -> str:
    return str(session.run("print(results.get(timeout=60))")["text"]).strip()


def test_a_thread_waits_for_a_grant_while_cells_go_on(session: SessionUnderTest) -> None:
    """Also one that was started without `threading`."""
    asked = wanted(session)
    session.run("_thread.start_new_thread(lambda: results.put(total()), ())")
    assert asked.wait(60)
    session.run("t = start(total)")
    assert session.run("print(1 + 1, results.empty())")["text"] == "2 True\n"
    session.on_wanted = session.grant
    session.grant()
    assert [result(session), result(session)] == [str(TOTAL)] * 2


def test_its_section_ends_with_the_thread_and_not_with_a_cell(session: SessionUnderTest) -> None:
    since = session.mark
    session.run("t = start(forever)")
    session.wait_for(protocol.DeviceWantedReport, since)
    since = session.mark
    session.run("before = steps\nwhile steps < before + 10: time.sleep(0.01)")
    assert "CellClosed" not in session.kinds(since)
    assert session.page.words[Word.THREADS] == 1
    assert session.page.words[Word.TURN] == Turn.HOLDING
    session.run("stop.is_set = True")
    session.wait_for(protocol.CellClosedReport, since)
    assert session.page.words[Word.THREADS] == 0


def test_a_thread_that_computes_no_more_ends_its_section(session: SessionUnderTest) -> None:
    """Its session is idle then, though the thread lives on."""
    since = session.mark
    session.run("go = threading.Event()\nt = start(lambda: (total(), go.wait()))")
    session.wait_for(protocol.CellClosedReport, since)
    assert session.run("print(t.is_alive())")["text"] == "True\n"
    session.run("go.set()")


def begin(session: SessionUnderTest, code: str) -> str:
    """Execute a cell, and return its request once it runs."""
    request = str(session.client.execute(f"print('begun')\n{code}"))
    session.until_printed("begun")
    return request


@pytest.mark.parametrize("cell", ["t.join()", "while not stop.is_set: pass"])
def test_a_thread_gives_the_device_back_when_it_is_asked_for(session: SessionUnderTest, cell: str) -> None:
    """It stops at its next operation, wherever the main thread is, and goes on with the next grant."""
    since = session.mark
    session.run("t = start(forever)")
    request = begin(session, cell)
    session.wait_for(protocol.DeviceWantedReport, since)
    for _ in range(3):
        asked, since = wanted(session), session.mark
        session.page.words[Word.PREEMPT] = 1
        session.wait_for(protocol.GrantReleasedReport, since)
        assert asked.wait(60)
        assert session.page.words[Word.TURN] == Turn.WANTING
        session.grant()
    session.on_wanted = session.grant
    session.interrupt()
    session.reply(request)


def test_a_refusal_goes_to_the_thread_that_asked(session: SessionUnderTest) -> None:
    session.on_wanted = lambda wanted: session.say(protocol.RefusedGrant(reason="quota", message="no room"))
    session.run("t = start(total)\nt.join()")
    assert session.run("print(repr(errors.pop()))")["text"] == "OutOfMemoryError('no room')\n"


def test_an_interrupt_concerns_the_main_thread_alone(session: SessionUnderTest) -> None:
    asked = wanted(session)
    since = session.mark
    request = session.client.execute("t = start(total)\ntotal()")
    session.wait_for(protocol.DeviceWantedReport, since)
    assert asked.wait(60)
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"
    session.grant()
    assert result(session) == str(TOTAL)


def test_a_failed_allocation_in_a_thread_has_figures(session: SessionUnderTest) -> None:
    session.limit(256 * MIB, quota=256 * MIB)
    try:
        session.run("t = start(lambda: torch.ones(100_000_000))\nt.join()")
        text = session.run("print(type(errors[-1]).__name__, errors.pop())")["text"]
        assert text.startswith("OutOfMemoryError This session uses ")
        assert "your quota is 256 MiB" in text
    finally:
        session.limit(32 << 30)


def test_a_session_is_moved_out_while_its_thread_waits(session: SessionUnderTest) -> None:
    """Also where a cell waits for that thread; all is as it was."""
    asked = started(session)
    request = session.client.execute("t.join()")
    asked.clear()
    assert move_out(session).offloaded_bytes >= 7 * MIB
    session.restore()
    assert asked.wait(60)
    session.grant()
    assert session.reply(request)["status"] == "ok"
    assert result(session) == str(TOTAL)


def test_a_thread_waits_with_a_lock_that_a_cell_needs(session: SessionUnderTest) -> None:
    """The session is moved out and back meanwhile, and both go on with the grant."""
    session.run(
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "os.register_at_fork(before=lambda: torch.ones(3).sum())\n"
        "def fork(): return os.waitpid(child, 0)[1] if (child := os.fork()) else os._exit(0)"
    )
    asked = started(session, "fork")
    request = begin(session, "print(fork() + 7)")
    asked.clear()
    move_out(session)
    session.restore()
    assert asked.wait(60)
    session.on_wanted = session.grant
    session.grant()
    reply = session.reply(request)
    assert reply["text"].splitlines()[-1] == "7", reply
    result(session)


def test_a_session_stays_while_another_thread_may_run(session: SessionUnderTest) -> None:
    session.run("go = threading.Event()\nother = threading.Thread(target=go.wait, name='other')\nother.start()")
    started(session)
    declined = answer_to_offload(session)
    assert isinstance(declined, protocol.OffloadDeclinedReport)
    assert declined.reason == "threads"
    assert "other" in declined.message
    session.run("go.set(); other.join()")
    session.grant()
    assert result(session) == str(TOTAL)


def test_a_traced_cell_that_waits_for_a_thread_ends(session: SessionUnderTest) -> None:
    """No mode may come into what is traced, so it never waits at the gate; the thread goes on with the grant."""
    session.run(
        "inside = threading.Event()\n"
        "def many():\n"
        "    inside.wait()\n"
        "    for _ in range(3):\n"
        "        total()\n"
        "        time.sleep(0.1)\n"
        "    return total()\n"
        "t = start(many)"
    )
    traced = "torch.jit.trace(lambda x: (inside.set(), t.join(), x + 1)[2], torch.ones(2))"
    with preempted_often(session):
        assert session.run(f"print({traced}(torch.ones(2)))")["text"] == "tensor([2., 2.])\n"
    assert result(session) == str(TOTAL)


def test_a_thread_that_dies_while_it_is_profiled_ends_its_section(session: SessionUnderTest) -> None:
    """What is profiled in a thread to its end computes as ever."""
    session.run(
        "def profile(): return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])\n"
        "def profiled():\n"
        "    with profile(): return total()\n"
        "def die():\n"
        "    profile().start()\n"
        "    return total()\n"
        "t = start(profiled)\nt.join()"
    )
    assert result(session) == str(TOTAL), session.run("print(errors)")["text"]
    since = session.mark
    session.run("t = start(die)\nt.join()")
    session.wait_for(protocol.CellClosedReport, since)
    assert session.page.words[Word.THREADS] == 0


def test_a_forked_child_that_ends_a_thread_leaves_the_count_as_it_is() -> None:
    """In a session where nothing was profiled: after that such a child of a plain Python 3.13 does not end either."""
    with SessionUnderTest() as session:
        session.run(
            f"{_START}\n"
            "import os, warnings\n"
            "warnings.simplefilter('ignore')\n"  # Python warns of forks where there are threads, from 3.12 on
            "reaped, steps = threading.Event(), 0\n"
            "def fork():\n"
            "    total()\n"
            "    if child := os.fork():\n"
            "        os.waitpid(child, 0)\n"
            "        reaped.set()\n"
            "        forever()\n"
            "t = start(fork)"
        )
        assert session.run("print(reaped.wait(60))\nwhile steps < 10: time.sleep(0.01)")["text"] == "True\n"
        assert session.page.words[Word.THREADS] == 1
        session.run("stop.is_set = True\nt.join()")


def test_a_section_that_was_being_ended_is_not_opened_twice() -> None:
    """Its thread began an operation meanwhile, was told that it has no section, and opens one."""
    opened: list[None] = []
    openers: list[threading.Thread] = []
    asked = threading.Event()

    class Busy(Passage):
        def is_at(self, owner: Any) -> bool:
            if not openers:
                openers.append(threading.Thread(target=threads.open_section, args=(owner,)))
                openers[0].start()
                asked.set()
            return True

    words = memoryview(bytearray(4096)).cast("q")
    threads = UserThreads(
        words, Busy(lambda: False), open_section=lambda: opened.append(None), close_section=lambda: opened.pop()
    )
    thread = threads.guard(lambda thread: DeviceMode(lambda: None))
    try:
        threads.open_section(thread)
        thread.used_at = -math.inf
        assert asked.wait(60)
        openers[0].join()
        assert len(opened) == 1
    finally:
        thread.mode.take_out()
