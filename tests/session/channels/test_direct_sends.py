"""Threads that send on a socket which another one reads."""

from __future__ import annotations

import contextlib
import gc
import queue
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from ipykernel.thread import BaseThread
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.session.channels.backpressure import OutputThread
from sharedkernel.session.channels.direct_sends import Replies, SharedSocket
from sharedkernel.session.channels.message_log import MessageLog
from tests.session.outputs import outputs_to_one

_CLIENTS, _REQUESTS, _FAREWELLS = 3, 1500, 500


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


class Shell:
    """A channel that a thread reads, and others reply on."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        router = context.socket(zmq.ROUTER)
        router.bind("inproc://shell")
        self.reader = BaseThread(name="reads", daemon=True)
        self._stream = ZMQStream(router, self.reader.io_loop)
        self.shared = SharedSocket(self._stream)
        self.requests: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._stream.on_recv(self.requests.put, copy=True)
        self.reader.start()

    def close(self) -> None:
        self.reader.stop()
        self.reader.join()
        self._stream.close()

    def connect(self) -> zmq.Socket[Any]:
        client = self._context.socket(zmq.DEALER)
        client.rcvtimeo = 20_000
        client.connect("inproc://shell")
        return client


@pytest.fixture
def shell(context: zmq.Context[Any]) -> Iterator[Shell]:
    shell = Shell(context)
    yield shell
    shell.close()


def test_a_request_is_read_though_a_reply_took_note_of_it(shell: Shell) -> None:
    """A socket's descriptor says once that something has come, to whoever uses the socket next."""
    early, late = shell.connect(), shell.connect()
    early.send(b"early")
    identity, _ = shell.requests.get(timeout=20)
    is_busy, go = threading.Event(), threading.Event()
    shell.reader.io_loop.add_callback(lambda: (is_busy.set(), go.wait()))
    assert is_busy.wait(20)
    late.send(b"late")
    time.sleep(0.05)  # zmq does not look again sooner
    shell.shared.send_multipart([identity, b"answer"])
    go.set()
    assert shell.requests.get(timeout=20)[1] == b"late"
    assert early.recv() == b"answer"
    early.close()
    late.close()


def test_every_request_has_its_reply_whoever_sends_it(shell: Shell) -> None:
    is_over, ended = threading.Event(), []

    def ask() -> None:
        with shell.connect() as client:
            for number in range(_REQUESTS):
                client.send(b"%d" % number)
                assert client.recv() == b"%d" % number
        ended.append(_REQUESTS)

    def reply() -> None:
        while not is_over.is_set():
            with contextlib.suppress(queue.Empty):
                shell.shared.send_multipart(shell.requests.get(timeout=0.1))

    with ThreadPoolExecutor() as repliers:
        repliers.submit(reply)
        repliers.submit(reply)
        with ThreadPoolExecutor(_CLIENTS) as clients:
            for _ in range(_CLIENTS):
                clients.submit(ask)
        is_over.set()
    assert ended == [_REQUESTS] * _CLIENTS


def test_outputs_arrive_in_their_order_though_a_slow_listener_has_the_thread_send_some() -> None:
    with outputs_to_one(limit=4, xpub_nodrop=1) as (outputs, listener):
        speaker = threading.Thread(target=lambda: [outputs.send_multipart([b"%d" % number]) for number in range(2000)])
        speaker.start()
        assert [int(listener.recv()) for _ in range(2000)] == list(range(2000))
        speaker.join()


class Farewell:
    """Says something when it is collected, as widgets do; which may be in the middle of what its thread sends."""

    def __init__(self, outputs: OutputThread, number: int, *, seconds: float = 0.0) -> None:
        self._outputs, self._number, self._seconds = outputs, number, seconds
        self._circle = self

    def __del__(self) -> None:
        time.sleep(self._seconds)
        self._outputs.send_multipart([b"farewell", b"%d" % self._number, b"end"])


def test_what_is_said_in_the_middle_of_a_message_comes_after_it(tmp_path: Path) -> None:
    threshold, dice = gc.get_threshold(), random.Random(7)
    # each frame is an object that is made while the message is sent
    with outputs_to_one(f"ipc://{tmp_path}/outputs", copy_threshold=0) as (outputs, listener):
        try:
            for number in range(_FAREWELLS):
                Farewell(outputs, number)
                gc.set_threshold(dice.randrange(1, 60), 10_000, 10_000)
                outputs.send_multipart([b"word", *[b"%d" % number] * 20, b"end"], copy=False)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        said = [listener.recv_multipart() for _ in range(2 * _FAREWELLS)]
    ends = {(message[0], len(message), message[-1]) for message in said}
    assert ends == {(b"word", 22, b"end"), (b"farewell", 3, b"end")}
    assert all(len(set(message[1:-1])) == 1 for message in said)


def test_a_reply_and_what_is_published_while_its_socket_is_read_do_not_wait_for_each_other(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    """The thread that reads may collect an object that has something to say, for which the log's lock is taken."""
    router, publisher = context.socket(zmq.ROUTER), context.socket(zmq.XPUB)
    router.bind(f"ipc://{tmp_path}/shell")
    publisher.bind(f"ipc://{tmp_path}/outputs")
    reader, outputs = BaseThread(name="reads", daemon=True), OutputThread(publisher)
    stream, control = ZMQStream(router, reader.io_loop), SimpleNamespace(send_multipart=None)
    manager = SimpleNamespace(get_subshell_to_shell_channel_socket=lambda subshell: None)
    kernel = SimpleNamespace(
        shell_stream=stream, control_stream=control, shell_channel_thread=SimpleNamespace(manager=manager)
    )
    outputs.start()
    replies, log = Replies(kernel), MessageLog()
    log.attend(SimpleNamespace(kernel=kernel, iopub_thread=outputs))
    replies.begin()
    requests: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def take(request: list[zmq.Frame]) -> None:
        requests.put([frame.bytes for frame in request])
        Farewell(outputs, 0, seconds=0.001)  # collected at any time, such as in the middle of the next one

    stream.on_recv(take, copy=False)
    reader.start()
    client = context.socket(zmq.DEALER)
    client.connect(f"ipc://{tmp_path}/shell")
    threshold = gc.get_threshold()
    gc.set_threshold(20, 10_000, 10_000)
    try:
        for number in range(_REQUESTS):
            client.send_multipart([b"%d" % number, b"question"])
            if number:  # so that one is being received while another is answered
                replies.send_multipart(requests.get(timeout=20))
    finally:
        gc.set_threshold(*threshold)
    reader.stop()
    reader.join()
    gc.collect()
    outputs.stop()
    outputs.close()
    stream.close()
    client.close()
    log.close()
