"""A session's end of the descriptor socket: requests and answers that carry descriptors of memory.

Used from user code, so it has to stand interrupts. Python handles a signal between any two steps of the main thread,
also between receiving a descriptor and recording it. So each exchange runs in a thread of its own, to which no
signal comes, and the main thread only waits for it: an interrupt ends the wait, the exchange comes to its end
unheeded, and what it received is closed.

An executor may be restarting: a request is repeated on the next one until an answer comes or patience ends. The
responder has to recognise repetitions.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable, ProtocolError, SharedKernelError
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.paths import DESCRIPTOR_SOCKET
from sharedkernel.system.deferred_signals import signals_held, wait_for

#: a restart takes two seconds, more on a busy machine
PATIENCE = 20.0
_RETRY_INTERVAL = 0.1


class Descriptor:
    """An open file of this process, closed with the last reference to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return it; -1 once it is closed."""
        return self._descriptor

    def close(self) -> None:
        """Close it now."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


Answer = tuple[Any, list[Descriptor]]


class DescriptorClient:
    """One process's connection, made when first needed.

    Parameters
    ----------
    executor_socket
        Path of the executor's control socket; the descriptor socket lies beside it.
    patience
        Seconds that a request may take, a restart of the executor included.
    """

    def __init__(self, executor_socket: str, patience: float = PATIENCE) -> None:
        self._path = str(Path(executor_socket).with_name(DESCRIPTOR_SOCKET))
        self._patience = patience
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        #: held during an exchange
        self._lock = threading.Lock()
        self._connection: PacketSocket | None = None
        os.register_at_fork(after_in_child=self._forget_in_child)

    def is_own(self) -> bool:
        """Whether this process made it, and not the one that this was forked from."""
        return self._pid == os.getpid()

    def request(self, message: Any, descriptors: Sequence[Descriptor] = ()) -> Answer:
        """Return the answer to *message* and the descriptors that came with it.

        Raises
        ------
        SharedKernelError
            When it was refused (:class:`~sharedkernel.errors.Refused` by policy), or no executor answers
            (:class:`~sharedkernel.errors.ExecutorUnavailable`).
        KeyError
            When what it names is not there.
        """
        coming = self.start(message, descriptors)
        wait_for(coming)
        return coming.result()

    def tell(self, message: Any) -> None:
        """Send *message* soon, and ignore the answer."""
        self.start(message)

    def start(self, message: Any, descriptors: Sequence[Descriptor] = ()) -> Future[Answer]:
        """Start a request and return its future at once.

        Requests are sent one at a time, and each runs to its end even if nobody waits for its answer. If no thread can
        be started for it, the future has failed.
        """
        answer: Future[Answer] = Future()
        numbered = msgspec.structs.replace(message, request=next(self._numbers))

        def run() -> None:
            try:
                with self._lock:
                    result = self._exchange(numbered, descriptors)
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        with signals_held():  # an interrupt could keep the thread from ever starting
            try:
                threading.Thread(target=run, name="sharedkernel-descriptors", daemon=True).start()
            except RuntimeError as error:
                answer.set_exception(ExecutorUnavailable(f"{error} in this session; end some, and try again."))
        return answer

    def _exchange(self, message: Any, descriptors: Sequence[Descriptor]) -> Answer:
        deadline = time.monotonic() + self._patience
        is_repeated = False
        while True:
            try:
                answer, received = self._ask(message, descriptors, deadline)
            except OSError:
                self._drop()
                if time.monotonic() > deadline:
                    raise ExecutorUnavailable(
                        "the executor does not answer, it may be restarting; nothing is lost, try again in a moment."
                    ) from None
                is_repeated = True
                time.sleep(_RETRY_INTERVAL)
                continue
            # gone already, if this is the second time that it was to go
            is_done = is_repeated and isinstance(message, protocol.Unshelve)
            if isinstance(answer, protocol.Failed) and not (is_done and answer.reason == "not_shelved"):
                if answer.reason == SharedKernelError.reason:  # the executor's fault, and no policy
                    raise SharedKernelError(answer.message)
                raise KeyError(answer.message) if answer.reason == "not_shelved" else answer.error()
            return answer, received

    def _ask(self, message: Any, descriptors: Sequence[Descriptor], deadline: float) -> Answer:
        if self._connection is None:
            self._connection = self._connect(deadline)
        self._connection.set_timeout(max(0.1, deadline - time.monotonic()))
        self._connection.send(message, [descriptor.fileno() for descriptor in descriptors])
        while True:
            answer, received = _receive(self._connection)
            if answer.request == message.request:
                return answer, received
            if answer.request == 0:  # it is about the connection, which ends with it
                self._drop()
                return answer, received

    def _connect(self, deadline: float) -> PacketSocket:
        connection = connect(self._path, protocol.FromDescriptorSocket)
        try:
            connection.set_timeout(max(0.1, deadline - time.monotonic()))
            greeting, _ = _receive(connection)
            if isinstance(greeting, protocol.Failed):
                raise greeting.error()
            if getattr(greeting, "version", None) != protocol.PROTOCOL_VERSION:
                raise ProtocolError(
                    "the executor and this kernel are of different versions of sharedkernel; restart the kernel."
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _forget_in_child(self) -> None:
        """Close the inherited connection: the executor is to see it end together with its own process."""
        self._lock = threading.Lock()
        self._drop()


def _receive(connection: PacketSocket) -> Answer:
    message, raw = connection.receive()
    if message is None:
        raise ConnectionResetError
    return message, [Descriptor(each) for each in raw]
