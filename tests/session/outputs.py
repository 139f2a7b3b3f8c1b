"""The way out of a kernel of a test's own, and who listens at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import zmq
from jupyter_client.session import Session as MessageSession

from sharedkernel.session.channels.backpressure import OutputThread
from tests.session.harness import PATIENCE


@contextlib.contextmanager
def outputs_to_one(
    address: str = "inproc://outputs", limit: int = 0, **options: int
) -> Iterator[tuple[OutputThread, zmq.Socket[Any]]]:
    """Yield outputs, and the one who listens at *address*; each has room for so many messages."""
    context: zmq.Context[Any] = zmq.Context()
    socket, listener = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    socket.sndhwm = listener.rcvhwm = limit
    for name, value in options.items():
        setattr(socket, name, value)
    socket.bind(address)
    listener.rcvtimeo = 1000 * int(PATIENCE)
    listener.connect(address)
    listener.subscribe(b"")
    socket.recv()  # the subscription
    outputs = OutputThread(socket)
    outputs.start()
    yield outputs, listener
    outputs.stop()
    assert outputs.num_unsent == outputs.bytes_unsent == 0
    outputs.close()
    context.destroy(linger=0)


class FakeKernel(SimpleNamespace):
    """What a cell's line needs of a kernel whose outputs a thread sends, and of its application."""

    def __init__(self, thread: OutputThread) -> None:
        super().__init__(iopub_thread=thread, iopub_socket=thread.background_socket, ident="a-kernel")
        self.session = MessageSession(key=b"a key")

    def get_parent(self) -> dict[str, Any]:
        """Return the message of the cell that runs."""
        return {"header": {"msg_id": "a cell"}}

    def read(self, listener: zmq.Socket[Any]) -> dict[str, Any]:
        """Return the next message that is published."""
        _, frames = self.session.feed_identities(listener.recv_multipart())
        message: dict[str, Any] = self.session.deserialize(frames)
        return message
