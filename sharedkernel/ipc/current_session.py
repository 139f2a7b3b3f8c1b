"""The session that this process serves, for code in its notebook: its id, its connections and the status document.

The session's process registers itself with :func:`connect`. Widgets, magics and shelves ask here, so that none of them
imports the session's own code. In every other process nothing is registered.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError, SharedKernelError
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.status.document import WatchedStatus, read_part
from sharedkernel.system.deferred_signals import InterruptSafeEvent

log = logging.getLogger(__name__)

Callback = Callable[[WatchedStatus], None]
#: seconds for which what clients send waits at most for another session that is to take this one's place
_MOST_HELD = 10.0


class ExecutorLink(Protocol):
    """A session's connection to its executor's control socket."""

    #: of the socket
    path: str
    #: an executor is connected
    is_connected: bool

    def send(self, *messages: protocol.Message) -> None:
        """Send *messages* in one piece (any thread)."""


class _View:
    """Shares one stream of views among its subscribers."""

    def __init__(self, link: ExecutorLink, session: str, channel: DescriptorClient) -> None:
        self.session = session
        self.channel = channel
        self._link = link
        self._lock = threading.Lock()
        self._subscribers: dict[object, tuple[Callback, float]] = {}
        self._questions = itertools.count(1)
        #: gets the answer to a question for an earlier session, by its number, while a cell waits for it
        self._answers: dict[int, queue.SimpleQueue[str]] = {}
        #: not set: an earlier session takes this one's place
        self._stays = InterruptSafeEvent()
        self._stays.set()

    def subscribe(self, callback: Callback, interval: float) -> Callable[[], None]:
        subscription = object()
        with self._lock:
            self._subscribers[subscription] = (callback, interval)
        self.watch()

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(subscription, None)
            self.watch()

        return unsubscribe

    def watch(self) -> None:
        """Ask the executor for views at the pace that the most eager subscriber wants; again for a new executor."""
        with self._lock:
            interval = min((interval for _, interval in self._subscribers.values()), default=0.0)
        self._link.send(protocol.Watch(interval=interval))

    def deliver(self, packed: msgspec.Raw) -> None:
        with self._lock:
            callbacks = [callback for callback, _ in self._subscribers.values()]
        if not callbacks:
            return
        try:
            status = read_part(packed, WatchedStatus, "status document", "the executor")
        except ProtocolError as error:
            log.warning("%s", error)
            return
        for callback in callbacks:
            with contextlib.suppress(Exception):  # a widget's fault must not cut the session off its executor
                callback(status)

    def want_earlier(self, patience: float) -> str | None:
        """Ask for the notebook's earlier session and return the answer; None when it does not come in time."""
        answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        question = next(self._questions)
        self._answers[question] = answer
        try:
            self._link.send(protocol.WantEarlier(question=question))
            return answer.get(timeout=patience if self._link.is_connected else 0.0)
        except queue.Empty:
            return None
        finally:
            self._answers.pop(question, None)

    def on_answer(self, notice: protocol.Notice) -> bool:
        """Take an answer; return whether a cell still waits for it."""
        if notice.holds_cells:
            self._stays.clear()
        elif (notice.question or not notice.text) and not self._stays.wait(0):
            self._stays.set()
        answer = self._answers.pop(notice.question, None)
        if answer is not None:
            answer.put(notice.text)
        return answer is not None

    def wait_for_place(self) -> None:
        if not self._stays.wait(_MOST_HELD):
            self._stays.set()


_view: _View | None = None


def connect(link: ExecutorLink, session: str, channel: DescriptorClient) -> None:
    """Make this process a session that can be looked at from within."""
    global _view
    _view = _View(link, session, channel)


def on_message(message: Any) -> None:
    """Take a view, or a new executor's greeting."""
    if _view is None:
        return
    if isinstance(message, protocol.View):
        _view.deliver(message.status)
    elif isinstance(message, protocol.Welcome):
        _view.watch()


def on_answer(notice: protocol.Notice) -> bool:
    """Take a sentence for the user, if a cell waits for it as an answer; False: it is for somebody else to show."""
    return _view is not None and _view.on_answer(notice)


def wait_for_place() -> None:
    """Return when this session is to handle what its clients send: not while an earlier one is to take its place.

    Then this process ends meanwhile; or that comes to nothing, or takes too long.
    """
    if _view is not None:
        _view.wait_for_place()


def _connected() -> _View:
    if _view is None:
        raise SharedKernelError('this kernel is not a shared one; pick the kernel "Shared GPU (PyTorch)" to use it.')
    return _view


def channel() -> DescriptorClient | None:
    """Return this process's connection for descriptors, of which there is one; None when it is no session."""
    if _view is None:
        return None
    if not _view.channel.is_own():  # a process that a session started, to be told so
        _view.channel = DescriptorClient(_view._link.path)
    return _view.channel


def session_id() -> str:
    """Return the id of the session this process serves.

    Raises
    ------
    SharedKernelError
        When this process is no session.
    """
    return _connected().session


def want_earlier(patience: float) -> str | None:
    """Ask for the earlier session of this notebook in place of this one.

    Parameters
    ----------
    patience
        Seconds to wait for the answer; one that comes later is shown in the notebook when it does.

    Returns
    -------
    The answer, for the user; None when there was none in time, or there is no executor to ask.

    Raises
    ------
    SharedKernelError
        When this process is no session.
    """
    return _connected().want_earlier(patience)


def subscribe(callback: Callback, interval: float = 0.5) -> Callable[[], None]:
    """Call *callback* with the status document every *interval* seconds, on a background thread.

    Returns
    -------
    A function that ends it.

    Raises
    ------
    SharedKernelError
        When this process is no session.
    """
    return _connected().subscribe(callback, interval)
