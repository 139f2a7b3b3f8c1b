"""Why a session keeps its memory although the executor asks for it."""

from __future__ import annotations

import pytest

from sharedkernel import protocol
from tests.session.harness import SessionUnderTest


@pytest.fixture(scope="module")
def session(session: SessionUnderTest) -> SessionUnderTest:
    session.run("import asyncio, threading, time\nkept = torch.ones(1 << 20)")
    return session


def decline(session: SessionUnderTest) -> protocol.OffloadDeclinedReport:
    since = session.mark
    session.say(protocol.OffloadCommand())
    return session.wait_for(protocol.OffloadDeclinedReport, since)


def test_a_running_cell_is_answered_at_once(session: SessionUnderTest) -> None:
    """The executor need not wait for a long cell to hear that it goes on."""
    request, _ = session.open("while True: time.sleep(0.01)")
    assert decline(session).reason == "busy"
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("begin", "end", "reason", "named"),
    [
        (
            "lock = threading.Lock(); lock.acquire()\nimport _thread\n"
            "begun = threading.Event()\n_thread.start_new_thread(lambda: (begun.set(), lock.acquire()), ())\n"
            "begun.wait()",
            "lock.release()\nimport sys\nwhile len(sys._current_frames()) > threading.active_count(): time.sleep(0.01)",
            "threads",
            "which Python did not start",
        ),
        (
            "async def wait(): await asyncio.sleep(1000)\ntask = asyncio.create_task(wait(), name='waits')",
            "task.cancel(); await asyncio.sleep(0)",
            "tasks",
            "waits",
        ),
        (
            "from tornado.ioloop import PeriodicCallback\ndef again(): pass\n"
            "periodic = PeriodicCallback(again, 1e6); periodic.start()",
            "periodic.stop()",
            "tasks",
            "again",
        ),
    ],
    ids=["thread", "task", "timer"],
)
def test_code_that_may_run_by_itself_keeps_the_memory(
    session: SessionUnderTest, begin: str, end: str, reason: str, named: str
) -> None:
    """It is named; once it has ended, the memory can go."""
    assert session.run(begin)["status"] == "ok"
    answer = decline(session)
    assert answer.reason == reason
    assert named in answer.message
    assert session.run(end)["status"] == "ok"
    session.offload()
    assert session.run_restored("print(float(kept.sum()))")["text"] == "1048576.0\n"


def test_threads_that_wait_for_a_cell_are_in_nobodys_way(session: SessionUnderTest) -> None:
    """A thread pool without work and a queue's feeder are no reason to keep the memory."""
    session.run(
        "import multiprocessing, concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(2)\n"
        "pool.submit(int).result()\nqueue = multiprocessing.Queue(); queue.put(1); queue.get()"
    )
    assert "QueueFeederThread" in session.run("print([thread.name for thread in threading.enumerate()])")["text"]
    session.offload()
    session.run_restored("pool.shutdown(); queue.close(); queue.join_thread()")


def test_what_stays_is_told(session: SessionUnderTest) -> None:
    """Beside what went, with sizes; a notebook that keeps arrays of NumPy only has nothing that can go."""
    session.run("import numpy; array = numpy.ones(1 << 20); shared = torch.ones(1 << 20).share_memory_()")
    kept = session.offload().kept
    assert kept is not None
    assert "4.0 MiB shared with other processes" in kept
    assert "outside the tensors" in kept
    session.run_restored("del kept, shared")
    answer = decline(session)
    session.run("kept = torch.ones(1 << 20); del array")
    assert answer.reason == "nothing"
    assert "outside the tensors that Python can see" in answer.message


def test_a_cell_that_comes_while_memory_is_written_stops_it(session: SessionUnderTest) -> None:
    """Asked and opened in any order: one answer, and the cell is right."""
    session.run("big = torch.ones(32 << 20)")
    for _ in range(4):
        since = session.mark
        session.say(protocol.OffloadCommand())
        assert session.run_restored("print(float(kept.sum()))")["text"] == "1048576.0\n"
        session.run("pass")
        answers = [kind for kind in session.kinds(since) if kind.startswith("Offload")]
        assert len(answers) == 1
        if answers == ["Offloaded"]:
            assert session.run_restored("print(float(big.sum()))")["text"] == f"{float(32 << 20)}\n"
    session.run("del big")
