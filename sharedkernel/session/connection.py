"""A session's connection to its executor: sends from any thread, receives in one of its own, outlives the executor.

The executor may go away at any time and another take its place. Then the link connects again and says by a
:class:`~sharedkernel.protocol.SessionHello` where the session stands; what was sent to the old executor and not heard
is covered by that, so nothing is repeated. One that does not welcome the session, as when it speaks another version of
the protocol, is asked ever more seldom: the right one may come in its place. One that hangs keeps nobody waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.system.deferred_signals import InterruptSafeEvent, signals_held

log = logging.getLogger(__name__)

#: seconds between attempts to reach an executor that went away, and at most between those to be welcomed: less than
#: an executor gives the sessions that it adopts
RETRY_INTERVAL, _MOST_INTERVAL = 0.1, 1.0
#: seconds for which an executor may read nothing when there is no room for more; then the session hangs up, greets it
#: anew and goes on, since user code may be what sends
_SEND_PATIENCE = 1
#: longest time, in seconds, that a message of :meth:`Link.send_soon` waits to be sent together with another one
SOON = 0.01
_TIMEVAL = struct.Struct("ll")


class Link:
    """One session's end of the control socket.

    Parameters
    ----------
    path
        Path of the executor's socket.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        #: held while the session's standing changes together with what is sent about it
        self.lock = threading.RLock()
        #: an executor is connected
        self.is_connected = False
        #: greetings sent so far: each executor knows what held when it was greeted, and what it was told since
        self.num_greetings = 0
        self._socket: socket.socket | None = None
        self._stop = threading.Event()
        self._pid = os.getpid()
        #: messages of :meth:`send_soon`, and whether there are any
        self._waiting: list[protocol.Message] = []
        self._is_any_waiting = InterruptSafeEvent()

    def start(self, make_hello: Callable[[], protocol.SessionHello], on_message: Callable[[Any], None]) -> None:
        """Connect in the background, and reconnect until :meth:`close`.

        Parameters
        ----------
        make_hello
            Returns the first message of a connection. Called on the link's thread with `lock` held, so that it matches
            what is sent after it.
        on_message
            Called with each message on the link's thread; must not block.
        """
        threading.Thread(target=self._run, args=(make_hello, on_message), name="sharedkernel-link", daemon=True).start()
        threading.Thread(target=self._send_waiting, name="sharedkernel-sender", daemon=True).start()

    def send(self, *messages: protocol.Message) -> None:
        """Send *messages* in one piece; forgotten while no executor is there, since the next greeting covers them."""
        if os.getpid() != self._pid:  # in a forked child another thread may have held the lock for ever
            return
        with signals_held(), self.lock:  # user code may send, too: a message is sent whole or not at all
            messages = (*self._waiting, *messages)
            self._forget_waiting()
            if self._socket is None or not messages:
                return
            try:
                self._socket.sendall(b"".join(map(protocol.encode, messages)))
            except OSError as error:
                log.info("the executor went away: %s", error)
                self._drop()

    @property
    def has_waiting(self) -> bool:
        """Whether a message of :meth:`send_soon` has not been sent."""
        return bool(self._waiting)

    def send_soon(self, message: protocol.CellOpenedReport | protocol.CellClosedReport) -> None:
        """Send *message* with the next one that is sent, or after :data:`SOON` seconds.

        To send one takes a tenth of the time of a cell that computes nothing. Short cells in close succession are said
        as one. The end of a cell may only wait behind its beginning.
        """
        if os.getpid() != self._pid:
            return
        with signals_held(), self.lock:
            if isinstance(message, protocol.CellOpenedReport) and self._waiting:
                del self._waiting[1:]  # the end of the one before
                return
            self._waiting.append(message)
            if len(self._waiting) == 1:
                self._is_any_waiting.set()

    def _forget_waiting(self) -> None:
        if self._waiting:
            self._waiting.clear()
            self._is_any_waiting.clear()

    def _send_waiting(self) -> None:
        while not self._stop.is_set():
            self._is_any_waiting.wait()
            time.sleep(SOON)
            self.send()

    def forget_in_child(self) -> None:
        """Close the socket in a forked child, which is not the session."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Disconnect for good."""
        self._stop.set()
        self._is_any_waiting.set()
        with self.lock:
            self._drop()

    def _drop(self) -> None:
        self.is_connected = False
        self._forget_waiting()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            self._socket.close()
            self._socket = None

    def _run(self, make_hello: Callable[[], protocol.SessionHello], on_message: Callable[[Any], None]) -> None:
        interval = RETRY_INTERVAL
        while not self._stop.is_set():
            is_refused = True
            try:
                connection = self._connect(make_hello)
                is_refused = connection is not None and not self._read(connection, on_message)
            except Exception:
                # Without this thread the session would hear of nothing any more. A greeting covers what was missed.
                log.exception("what the executor said could not be handled; this session greets it anew")
            interval = min(2 * interval, _MOST_INTERVAL) if is_refused else RETRY_INTERVAL
            self._stop.wait(interval)

    def _connect(self, make_hello: Callable[[], protocol.SessionHello]) -> socket.socket | None:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:  # this process can open no more files
            return None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_SEND_PATIENCE, 0))
        try:
            connection.connect(self.path)
            with self.lock:
                self._forget_waiting()
                connection.sendall(protocol.encode(make_hello()))
                self._socket = connection
                self.num_greetings += 1
        except OSError:
            connection.close()
            return None
        return connection

    def _read(self, connection: socket.socket, on_message: Callable[[Any], None]) -> bool:
        """Handle an executor's messages until it goes away; return whether it has welcomed this session."""
        is_welcome = False
        decoder = protocol.Decoder(protocol.ToSession, most=protocol.MAX_ANSWER_BYTES)
        try:
            while data := connection.recv(65536):
                for message in decoder.feed(data):
                    if isinstance(message, protocol.Welcome):
                        self.is_connected = is_welcome = True
                    on_message(message)
        except (OSError, ProtocolError) as error:
            log.info("lost the executor: %s", error)
        finally:
            with self.lock:
                if self._socket is connection:
                    self._drop()
        return is_welcome
