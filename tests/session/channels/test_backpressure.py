"""Who waits while a session's outputs are taken slowly, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import zmq
from jupyter_client.session import Session as MessageSession

from sharedkernel import protocol
from sharedkernel.session.channels.backpressure import OutputThread, out_of_turn, pace
from sharedkernel.session.wait_display import WaitDisplay
from tests.session.harness import SessionUnderTest

#: more than the main thread may have on its way
_MANY = 300
#: seconds, beyond any test
_ENDLESS = 1e6


class SlowOutputs:
    """The way out of a kernel, and who listens at its end, and has room for two messages."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        socket = self.context.socket(zmq.XPUB)
        socket.sndhwm, socket.xpub_nodrop = 1, 1
        socket.bind("inproc://outputs")
        self.listener = self.context.socket(zmq.SUB)
        self.listener.rcvhwm = 1
        self.listener.connect("inproc://outputs")
        self.listener.subscribe(b"")
        self.listener.rcvtimeo = 30_000
        socket.recv()  # the subscription
        self.thread = OutputThread(socket)
        self.thread.start()
        pace(SimpleNamespace(iopub_thread=self.thread), patience=_ENDLESS)

    def close(self) -> None:
        self.listener.close()
        self.thread.stop()
        self.thread.close()
        self.context.term()


@pytest.fixture
def outputs() -> Iterator[SlowOutputs]:
    """Yield outputs of which more wait than the main thread may have under way."""
    outputs = SlowOutputs()

    def flood() -> None:
        for _ in range(_MANY):
            outputs.thread.send_multipart([b"much"])

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join()
    yield outputs
    outputs.close()


def test_the_line_of_a_waiting_cell_waits_for_no_other_output(outputs: SlowOutputs) -> None:
    """Neither where the cell's thread shows it nor where the executor's word changes it; clients see it in the end."""
    kernel = SimpleNamespace(
        session=MessageSession(key=b"a key"),
        iopub_socket=outputs.thread.background_socket,
        ident="a-kernel",
        get_parent=lambda: {"header": {"msg_id": "a cell"}},
    )
    notice = WaitDisplay(kernel, out_of_turn)
    notice.attend(SimpleNamespace(iopub_thread=outputs.thread))
    with notice.cell():
        notice.wait_begins()
        notice.show()  # in the main thread
        link = threading.Thread(target=notice.update, args=[protocol.Waiting(reason="lane", position=7)])
        link.start()
        link.join()
        notice.end()
    shown = []  # nothing was taken meanwhile
    while len(shown) < 3:
        topic, *frames = outputs.listener.recv_multipart()
        if topic != b"much":
            _, parts = kernel.session.feed_identities(frames)
            shown.append(kernel.session.deserialize(parts))
    assert "Waiting" in shown[0]["content"]["data"]["text/plain"]
    assert "place 7" in shown[1]["content"]["data"]["text/plain"]
    assert shown[2]["msg_type"] == "clear_output"


#: the thread that sends outputs stands still meanwhile
_FLUSH_WHILE_STOPPED = """
import sys, threading
outputs, go = get_ipython().kernel.iopub_thread, threading.Event()
def flushes(text):
    printed = threading.Thread(target=lambda: print(text, end="", flush=True))
    printed.start()
    printed.join(3)
    return not printed.is_alive()
sys.stdout.flush()
outputs.schedule(go.wait)
ended = [flushes(""), flushes("said"), flushes("")]
go.set()
print(ended)"""


def test_a_flush_waits_for_what_was_printed_and_for_nothing_else(session: SessionUnderTest) -> None:
    """The kernel flushes six times a cell, most of which print nothing."""
    assert session.run(_FLUSH_WHILE_STOPPED)["text"].strip() == "said[True, False, False]"


@pytest.fixture
def thread() -> Iterator[OutputThread]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    thread = OutputThread(context.socket(zmq.XPUB))
    thread.start()
    yield thread
    thread.stop()
    thread.close()
    context.term()


def test_whatever_is_scheduled_while_the_outputs_thread_wakes_is_done(thread: OutputThread) -> None:
    """Though it is woken once for several at a time, and by threads that know nothing of each other."""
    done: list[int] = []
    ended = threading.Event()

    def schedule(number: int) -> None:
        for _ in range(2000):
            thread.schedule(lambda: done.append(number))

    schedulers = [threading.Thread(target=schedule, args=(number,)) for number in range(4)]
    for scheduler in schedulers:
        scheduler.start()
    for scheduler in schedulers:
        scheduler.join()
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
