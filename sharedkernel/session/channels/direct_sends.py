"""Messages that are sent by the thread that has them, instead of the one that reads their socket.

ipykernel has a thread for each socket, which alone uses it. So each output of a cell wakes one thread, and its reply
another. Neither runs before the main thread lets go of the interpreter, which is when it has nothing left to do: of the
five milliseconds that a short cell took, the last one went by with its reply ready.

zmq's sockets may be used by several threads if these exclude each other.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import zmq
from jupyter_client.jsonutil import json_clean, json_default
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.system.deferred_signals import signals_held


class SharedSocket:
    """The socket of a stream that its thread reads, and on which any thread may send.

    Signals are held off by whoever sends on the main thread: an interrupt would leave half a message.

    Parameters
    ----------
    stream
        It uses this in the place of its socket from now on.
    """

    def __init__(self, stream: ZMQStream) -> None:
        self._stream = stream
        self._socket: zmq.Socket[Any] = stream.socket
        # Not reentrant: while a message is sent, objects may be collected that have something to say, such as widgets.
        self._lock = threading.Lock()
        stream.socket = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        """Return what the socket has by that *name* and what does not change, without a wait."""
        return getattr(self._socket, name)

    @property
    def events(self) -> int:
        """The events that it is ready for: `zmq.POLLIN`, `zmq.POLLOUT`."""
        with self._lock:
            return self._find_events()

    EVENTS = events

    def recv_multipart(self, *args: Any, **kwargs: Any) -> Any:
        """Receive a message as the socket does."""
        with self._lock:
            return self._socket.recv_multipart(*args, **kwargs)

    def send_multipart(self, frames: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Send a message as the socket does."""
        with self._lock:
            return self.send_held(frames, *args, **kwargs)

    def send_held(self, frames: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Send a message as the socket does, within :meth:`holding`."""
        try:
            return self._socket.send_multipart(frames, *args, **kwargs)
        finally:
            self._look_for_input()

    def holding(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return *send*, during which no other thread uses the socket."""

        def hold_and_send(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return send(*args, **kwargs)

        return hold_and_send

    def try_to_send(self, frames: Sequence[Any], **kwargs: Any) -> bool:
        """Send a message, unless that would wait, for room or for another thread; return whether it is sent."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self.send_held(frames, zmq.NOBLOCK, **kwargs)
        except zmq.ZMQError:  # no room, or closed
            return False
        finally:
            self._lock.release()
        return True

    def _look_for_input(self) -> None:
        """Have the stream's thread receive what has come: a send may have taken note of it, and it is told once."""
        if not self._socket.closed and self._find_events() & zmq.POLLIN:
            self._stream.io_loop.add_callback(self._stream._handle_events, self, 0)

    def _find_events(self) -> int:
        return cast("int", self._socket.get(zmq.EVENTS))


class Replies:
    """The main thread's replies on the shell channel, in the place of ipykernel's way to the thread that reads it.

    Parameters
    ----------
    kernel
        The ipykernel, made and not started.
    """

    def __init__(self, kernel: Any) -> None:
        self._stream = kernel.shell_stream
        self._shared = SharedSocket(self._stream)
        self._stream.send_multipart = self._shared.send_held
        manager = kernel.shell_channel_thread.manager
        find = manager.get_subshell_to_shell_channel_socket
        self._usual_way: zmq.Socket[Any] = find(None)
        #: they may be sent at once. The error of a cell may not: its client's next cell could come before ipykernel has
        #: aborted those that wait, and be aborted with them
        self.are_direct = True
        manager.get_subshell_to_shell_channel_socket = lambda subshell: self if subshell is None else find(subshell)

    def begin(self) -> None:
        """Send from now on, by all that wraps the sends of the stream by now.

        The socket is taken before any lock of theirs: while its thread receives, objects may be collected that publish
        something, for which those locks are taken as well.
        """
        self._stream.send_multipart = self._shared.holding(self._stream.send_multipart)

    def send_multipart(self, frames: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """Send a reply."""
        if self.are_direct:
            with signals_held():
                self._stream.send_multipart(frames, *args, **kwargs)
        else:
            self._usual_way.send_multipart(frames, *args, **kwargs)


def replacing_surrogates(serialize: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return *serialize*, of a message session, with U+FFFD for each lone surrogate that it cannot encode.

    Whatever is packed is packed by it: a warning of that names the place in `jupyter_client` that a stock kernel names.
    """

    def serialize_any(message: dict[str, Any], ident: Any = None) -> list[Any]:
        try:
            return serialize(message, ident)
        except UnicodeEncodeError:
            theirs = json_clean({part: message[part] for part in ("metadata", "content")})
            text = json.dumps(theirs, default=json_default, ensure_ascii=False, allow_nan=False)
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return serialize(message | json.loads(text), ident)

    return serialize_any
