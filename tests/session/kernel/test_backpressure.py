"""Who waits while a session's outputs are taken slowly, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import zmq
from ipykernel.iostream import IOPubThread
from jupyter_client.session import Session as MessageSession

from sharedkernel import protocol
from sharedkernel.session.kernel.backpressure import Pace, out_of_turn
from sharedkernel.session.ui.wait_display import WaitNotice

#: more than the main thread may have on its way
_MANY = 300
#: seconds, beyond any test
_ENDLESS = 1e6


class SlowOutputs:
    """The way out of a kernel, stopped until :attr:`go` is set, and who listens at its end."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        socket = self.context.socket(zmq.XPUB)
        socket.bind("inproc://outputs")
        self.listener = self.context.socket(zmq.SUB)
        self.listener.connect("inproc://outputs")
        self.listener.subscribe(b"")
        self.listener.rcvtimeo = 30_000
        socket.recv()  # the subscription
        self.thread = IOPubThread(socket)
        self.thread.start()
        Pace(patience=_ENDLESS).attend(SimpleNamespace(iopub_thread=self.thread))
        self.go = threading.Event()
        self.thread.schedule(self.go.wait)

    def close(self) -> None:
        self.go.set()
        self.thread.stop()
        self.thread.close()
        self.listener.close()
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
    notice = WaitNotice(kernel, out_of_turn)
    notice.attend(SimpleNamespace(iopub_thread=outputs.thread))
    with notice.cell():
        notice.wait_begins()
        notice.show()  # in the main thread
        link = threading.Thread(target=notice.update, args=[protocol.Waiting(reason="lane", position=7)])
        link.start()
        link.join()
        notice.end()
    assert not outputs.go.is_set()  # nothing was taken meanwhile
    outputs.go.set()
    shown = []
    while len(shown) < 3:
        topic, *frames = outputs.listener.recv_multipart()
        if topic != b"much":
            _, parts = kernel.session.feed_identities(frames)
            shown.append(kernel.session.deserialize(parts))
    assert "Waiting" in shown[0]["content"]["data"]["text/plain"]
    assert "place 7" in shown[1]["content"]["data"]["text/plain"]
    assert shown[2]["msg_type"] == "clear_output"
