"""Backpressure: who prints faster than the gateway reads, waits; what comes faster than it is handled, is refused.

Stock kernels publish and forget: what a slow reader has no room for is lost, and what waits to be sent has no limit.
Here the queue on the way out is short and loses nothing; while it is full the main thread waits where it prints or
displays, so that a flood slows down its own session and fills nobody's memory. Nothing waits while no gateway is there,
and nothing waits for ever: after :data:`PATIENCE` a message is queued nevertheless.

Only the main thread waits, and threads that print; those that serve interrupts and the executor never do, nor does
the line under a waiting cell (:func:`out_of_turn`), which the main thread shares with the one that serves the executor.

A message that is too long for the gateway is replaced by a sentence (:func:`refuse_long`).

What forked children print comes over a unix socket: the port that a stock kernel opens for it is open to all users.

What comes in waits, too. A thread of ipykernel's reads the shell channel all the time and passes everything on to the
thread that will handle it, which may be in the middle of a cell for hours. What waits there is memory of the session's,
counts against its user's quota like any other, and at the limit not even an interrupt gets through. So it has a limit
of its own (:class:`RequestLimit`), and beyond that messages are answered with an error.
"""

from __future__ import annotations

import codecs
import fcntl
import itertools
import json
import logging
import os
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import zmq
from ipykernel.iostream import PIPE_BUFFER_SIZE, IOPubThread, OutStream
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.session import DELIM
from jupyter_client.session import Session as MessageSession
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES
from sharedkernel.session.channels.direct_sends import SharedSocket
from sharedkernel.session.likeness import imported_names, named_as, unaware_of_modules
from sharedkernel.system.deferred_signals import InterruptSafeEvent, InterruptSafeThread, signals_held
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: messages in the socket's queue; each may be large
_QUEUE = 16
#: messages and bytes of the main thread on their way to the socket, beyond which it waits
_MOST_MESSAGES, _MOST_BYTES = 200, 8 << 20
#: longest header of a message, in bytes
_MOST_HEADER = 1 << 20
#: characters that are printed before the stream is flushed, and the printer waits for it
_MOST_CHARACTERS = 1 << 20
#: seconds that the main thread waits for one message
PATIENCE = 10.0
#: bytes that a pipe holds with what is read from it at a time, and seconds that a cell's end waits for them
_PIPE_BYTES, _DRAIN_PATIENCE = (64 << 10) + PIPE_BUFFER_SIZE, 1.0
#: seconds between looks at whether there is room, or something to wait for
_PAUSE = 0.001

_this_thread = threading.local()


@contextmanager
def out_of_turn() -> Iterator[None]:
    """Let what this thread says within it wait for nothing that was said before; for little, and seldom."""
    _this_thread.is_out_of_turn = True
    try:
        yield
    finally:
        _this_thread.is_out_of_turn = False


@named_as(OutStream)
class PacedStream(OutStream):
    """Standard output or error whose buffer has a limit."""

    _num_unsent = 0
    #: bytes that programs and C code have printed and that are taken in; whether some are read and not taken in
    _num_taken = 0
    _is_taking = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # One number for each piece that was printed: the last one there was, and that up to which all is sent.
        self._numbers = itertools.count(1)
        self._last_printed = self._last_sent = 0
        super().__init__(*args, **kwargs)

    def write(self, string: str) -> int | None:  # type: ignore[override]  # as its base has it
        """Print *string*; waits when much of what was printed is not sent yet."""
        written = super().write(string)
        if string:
            self._last_printed = next(self._numbers)
        self._num_unsent += len(string)
        if self._num_unsent > _MOST_CHARACTERS and self._is_master_process():
            self.flush()
        return written

    def flush(self) -> None:
        """Send the buffer and wait until it is sent; unlike its base, safe with interrupts.

        There is nothing to wait for if nothing was printed since: ipykernel flushes both streams three times a cell.
        """
        if self._last_sent == self._last_printed and self.echo is None:
            return
        thread = None if self.pub_thread is None else self.pub_thread.thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            self._flush()
            return
        sent = InterruptSafeEvent()
        self.pub_thread.schedule(self._flush)
        self.pub_thread.schedule(sent.set)
        if not sent.wait(self.flush_timeout):
            print("IOStream.flush timed out", file=sys.__stderr__)

    def _watch_pipe_fd(self) -> None:
        """Take in what is printed past Python, so that :meth:`drain` can tell what is still to come."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a read may end within a character
        try:
            while select.select([self._fid], [], []) and self._should_watch:
                self._is_taking = True
                if not (data := os.read(self._fid, PIPE_BUFFER_SIZE)):
                    break
                self.write(decode(data))
                os.write(self._original_stdstream_copy, data)
                self._num_taken += len(data)
                self._is_taking = False
        except Exception:
            self._exc = sys.exc_info()

    def drain(self) -> None:
        """Wait until what programs have printed by now is taken in."""
        until, enough = time.monotonic() + _DRAIN_PATIENCE, self._num_taken + _PIPE_BYTES
        while self._fid is not None and self.watch_fd_thread.is_alive() and self._num_taken < enough:
            waiting = struct.unpack("i", fcntl.ioctl(self._fid, termios.FIONREAD, b"\0\0\0\0"))
            if not (any(waiting) or self._is_taking) or time.monotonic() > until:
                return
            time.sleep(_PAUSE)

    def _flush(self) -> None:
        self._num_unsent, printed = 0, self._last_printed
        super()._flush()
        self._last_sent = printed


@named_as(IPKernelApp)
class SessionApp(IPKernelApp):
    """A kernel application whose outputs are sent at the pace at which they are taken.

    It looks at none of the modules and loggers that were made before the fork, whose memory all sessions share.
    """

    def parse_command_line(self, argv: Sequence[str] | None = None) -> None:
        """Note the arguments; what they say was set already. A parser would first be made of all options there are."""
        self.argv = list(argv or ())

    def _configure_logging(self) -> None:
        if self.logging_config:  # else nothing that `own_log.take_over` would leave as it is
            super()._configure_logging()

    def init_code(self) -> None:
        """Run the code that comes before the first cell."""
        with unaware_of_modules():
            super().init_code()
        assert self.shell is not None
        self.shell._sys_modules_keys = imported_names()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Make the socket for outputs: a short queue, and a sender that waits instead of losing what does not fit."""
        publisher = context.socket(zmq.XPUB)
        publisher.linger = 1000
        publisher.setsockopt(zmq.SNDHWM, _QUEUE)
        publisher.setsockopt(zmq.XPUB_NODROP, 1)
        self.iopub_port = self._bind_socket(publisher, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = OutputThread(publisher, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket


@named_as(IOPubThread)
class OutputThread(IOPubThread):
    """Publishes outputs; those of forked children, too, once it is known where these can send them."""

    _children_at = ""
    #: it was woken, and will do all that was scheduled by then
    _is_woken = False
    #: messages, and their bytes, that wait for this thread to send them
    num_unsent = bytes_unsent = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The main thread asks at each output whether it runs, and would publish by itself, between the other's frames.
        self.thread = InterruptSafeThread(target=self._thread_main, name=self.thread.name, daemon=True)
        self.thread.pydev_do_not_trace = self.thread.is_pydev_daemon_thread = True  # as its base has it
        # Reentrant: an object that is collected meanwhile may have something to say.
        self._count_lock = threading.RLock()
        self.socket = SharedSocket(self._xpub_stream)

    def send_multipart(self, frames: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """Publish a message; this thread does it where others wait to be sent, or a listener has no room."""
        is_first = not self.num_unsent and not self.closed and self._is_master_process()
        if not is_first or not self.socket.try_to_send(frames, **kwargs):
            self._count(1, frames)
            super().send_multipart(frames, *args, **kwargs)

    def _really_send(self, msg: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        try:
            super()._really_send(msg, *args, **kwargs)
        finally:
            self._count(-1, msg)

    def _count(self, sign: int, frames: Sequence[Any]) -> None:
        size = sign * _size(frames)
        with self._count_lock:
            self.num_unsent += sign
            self.bytes_unsent += size

    def schedule(self, f: Callable[[], Any]) -> None:
        """Call *f* on this thread; now, if it does not run. It is woken once for all that comes until it is awake."""
        if not self.thread.is_alive():
            f()
            return
        self._events.append(f)
        if not self._is_woken:
            with signals_held():  # both or neither
                self._is_woken = True
                self._event_pipe.send(b"")

    def _handle_event(self, msg: Any) -> None:
        self._is_woken = False
        try:
            super()._handle_event(msg)
        except BaseException:  # as of a hook of the user's: what was scheduled behind it has no other wake-up
            self.io_loop.add_callback(self._handle_event, msg)
            raise

    def serve_children(self, path: str) -> None:
        """Publish what forked children print, which they send to the unix socket *path*."""
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        try:
            pipe.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            log.warning("what forked processes print will not be shown: %s", error)
            pipe.close()
            return
        self._children_at, self._pipe_uuid, self._pipe_flag = f"ipc://{path}", os.urandom(16), True
        self.schedule(lambda: self._read_children(pipe))

    def _read_children(self, pipe: zmq.Socket[Any]) -> None:
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[zmq.Context[Any], zmq.Socket[Any]]:
        context = zmq.Context()  # the parent's cannot be used after a fork
        pipe = context.socket(zmq.PUSH)
        pipe.linger = 3000
        pipe.connect(self._children_at)
        return context, pipe


def pace(app: Any, patience: float = PATIENCE) -> None:
    """Have the main thread wait, where it publishes something, while much of what it said is not sent yet.

    Parameters
    ----------
    app
        The kernel application. Called after everything else that wraps what it publishes.
    patience
        Seconds that the main thread waits for one message at most.
    """
    outputs: OutputThread = app.iopub_thread
    send = outputs.send_multipart

    def wait_and_send(frames: Any, *args: Any, **kwargs: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not getattr(_this_thread, "is_out_of_turn", False):
            _wait_for_room(outputs, patience)
        # An interrupt in the middle would leave half a message, or one that is counted or kept and never sent.
        with signals_held():
            send(frames, *args, **kwargs)

    outputs.send_multipart = wait_and_send  # type: ignore[method-assign]


def _wait_for_room(outputs: OutputThread, patience: float) -> None:
    # Looks instead of being told: an interrupt that finds the main thread inside a condition leaves that locked, and
    # the thread that sends waits for it for ever.
    patient_until = time.monotonic() + patience
    while outputs.num_unsent > _MOST_MESSAGES or outputs.bytes_unsent > _MOST_BYTES:
        if not outputs.thread.is_alive() or time.monotonic() > patient_until:
            return
        time.sleep(_PAUSE)


def refuse_long(app: Any) -> None:
    """Send an error or a sentence in the place of each message that is too long, its binary buffers included.

    Parameters
    ----------
    app
        The kernel application. Called after everything else that wraps its channels, so that nothing keeps or counts a
        message that is not sent.
    """
    for channel in (app.iopub_thread, app.kernel.shell_stream, app.kernel.control_stream):
        channel.send_multipart = _refusing_long(channel.send_multipart, app.session)


def _refusing_long(send: Callable[..., Any], session: MessageSession) -> Callable[..., Any]:
    def check_and_send(frames: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        size = _size(frames)
        if size > MAX_OUTPUT_BYTES:
            frames = _refusal(
                session,
                frames,
                f"{format_bytes(size)} of output are not shown: the gateway passes on {format_bytes(MAX_OUTPUT_BYTES)} "
                "at a time. Show less, or write it to a file.",
            )
        return send(frames, *args, **kwargs)

    return check_and_send


def _refusal(session: MessageSession, frames: Sequence[Any], sentence: str) -> list[Any]:
    """Return a message with a *sentence* in the place of that of *frames*."""
    # Only its headers are needed; the rest is not copied.
    small = [memoryview(frame).tobytes() if memoryview(frame).nbytes < _MOST_HEADER else b"" for frame in frames]
    identities, parts = session.feed_identities(small)
    header, parent = (json.loads(part) for part in cast("list[bytes]", parts[1:3]))
    message_type = "stream"
    content: dict[str, Any] = {"name": "stderr", "text": f"{sentence}\n"}
    if header["msg_type"].endswith("_reply"):
        message_type = header["msg_type"]
        content = {"status": "error", "ename": "OutputTooLong", "evalue": sentence, "traceback": [sentence]}
    message = session.msg(message_type, content, parent=parent)
    return session.serialize(message, ident=identities)


def _size(frames: Sequence[Any]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


#: twice the longest message that a gateway lets through unless it is told otherwise
MOST_WAITING_BYTES = 128 << 20


class RequestLimit:
    """Counts the messages that were passed on and are not handled yet; every method may be called by any thread.

    Parameters
    ----------
    limit_bytes
        How much may wait; a message alone may be longer.
    """

    def __init__(self, limit_bytes: int = MOST_WAITING_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        #: subshell (None: the main one) and bytes of each message that waits
        self._waiting: dict[bytes, tuple[str | None, int]] = {}
        self._size = 0

    def add(self, frames: Sequence[Any], subshell: str | None, subshells: Collection[str]) -> bool:
        """Count a message with its identities for *subshell*; False if there is no room for it.

        Parameters
        ----------
        frames
            As they came.
        subshell, subshells
            Whose it is, and all there are now: what waited for one that is gone is not handled any more.
        """
        size = sum(map(len, frames))
        with self._lock:
            if self._waiting and self._size + size > self.limit_bytes:
                self._forget_but(subshells)
            if self._waiting and self._size + size > self.limit_bytes:
                return False
            self._take(_key(frames))
            self._waiting[_key(frames)] = subshell, size
            self._size += size
            return True

    def take(self, frames: Sequence[Any]) -> None:
        """Record that the message of these *frames* is being handled."""
        with self._lock:
            self._take(_key(frames))

    def _take(self, key: bytes) -> None:
        _, size = self._waiting.pop(key, (None, 0))
        self._size -= size

    def _forget_but(self, subshells: Collection[str]) -> None:
        waiting = self._waiting.items()
        for key in [key for key, (whose, _) in waiting if whose is not None and whose not in subshells]:
            self._take(key)


def _key(frames: Sequence[Any]) -> bytes:
    """Return what tells a message from others: its signature and header."""
    for place, frame in enumerate(frames):
        if len(frame) == len(DELIM) and bytes(frame) == DELIM:
            return b"".join(map(bytes, frames[place + 1 : place + 3]))
    return b""  # ipykernel's own, from one of its threads to another
