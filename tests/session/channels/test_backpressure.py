"""Who waits while a session's outputs are taken slowly, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharedkernel import protocol
from sharedkernel.session.channels.backpressure import OutputThread, out_of_turn, pace
from sharedkernel.session.wait_display import WaitDisplay
from tests.session.harness import SessionUnderTest
from tests.session.outputs import FakeKernel, outputs_to_one

#: more than the main thread may have on its way
_MANY = 300
#: seconds, beyond any test
_ENDLESS = 1e6


def test_the_line_of_a_waiting_cell_waits_for_no_other_output() -> None:
    """Neither where the cell's thread shows it nor where the executor's word changes it; clients see it in the end."""
    with outputs_to_one(limit=1, xpub_nodrop=1) as (outputs, listener):
        kernel = FakeKernel(outputs)
        pace(kernel, patience=_ENDLESS)
        flood = threading.Thread(target=lambda: [outputs.send_multipart([b"much"]) for _ in range(_MANY)])
        flood.start()
        flood.join()
        notice = WaitDisplay(kernel, out_of_turn)
        notice.attend(kernel)
        with notice.cell():
            notice.wait_begins()
            notice.show()  # in the main thread
            link = threading.Thread(target=notice.update, args=[protocol.Waiting(reason="lane", position=7)])
            link.start()
            link.join()
            notice.end()
        # nothing was taken meanwhile
        assert [listener.recv_multipart() for _ in range(_MANY)] == [[b"much"]] * _MANY
        shown = [kernel.read(listener) for _ in range(3)]
    assert "Waiting" in shown[0]["content"]["data"]["text/plain"]
    assert "place 7" in shown[1]["content"]["data"]["text/plain"]
    assert shown[2]["msg_type"] == "clear_output"


#: the thread that sends outputs stands still meanwhile
_FLUSH_WHILE_STOPPED = """
import sys, threading
outputs, go = get_ipython().kernel.iopub_thread, threading.Event()
def flushes(text, within):
    printed = threading.Thread(target=lambda: print(text, end="", flush=True))
    printed.start()
    printed.join(within)
    return not printed.is_alive()
sys.stdout.flush()
outputs.schedule(go.wait)
ended = [flushes("", 3), flushes("said", 0.5), flushes("", 0.5)]
go.set()
print(ended)"""


def test_a_flush_waits_for_what_was_printed_and_for_nothing_else(session: SessionUnderTest) -> None:
    """The kernel flushes six times a cell, most of which print nothing."""
    assert session.run(_FLUSH_WHILE_STOPPED)["text"].strip() == "said[True, False, False]"


@pytest.fixture
def thread() -> Iterator[OutputThread]:
    with outputs_to_one() as (thread, _):
        yield thread


def test_whatever_is_scheduled_while_the_outputs_thread_wakes_is_done(thread: OutputThread) -> None:
    """Though it is woken once for several at a time, and by threads that know nothing of each other."""
    done: list[int] = []
    ended = threading.Event()

    def schedule(number: int) -> None:
        for _ in range(2000):
            thread.schedule(lambda: done.append(number))

    with ThreadPoolExecutor(4) as pool:
        pool.map(schedule, range(4))
    thread.schedule(ended.set)
    assert ended.wait(60)
    assert [done.count(number) for number in range(4)] == [2000] * 4


def test_what_is_scheduled_behind_something_that_fails_is_done(
    thread: OutputThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Though one wake-up was for both: the end of a cell must not wait for the next one."""
    is_standing, go, ended = threading.Event(), threading.Event(), threading.Event()

    def stand_still() -> None:
        is_standing.set()
        go.wait()

    def fail() -> None:
        raise ValueError("a hook of the user's")

    thread.schedule(stand_still)
    assert is_standing.wait(60)
    thread.schedule(fail)
    thread.schedule(ended.set)
    go.set()
    assert ended.wait(60)
    assert "a hook of the user's" in caplog.text
