"""The line in a waiting cell: why it waits, its place in the queue and for how long.

The line must leave no trace in the notebook, so that what is saved equals what a kernel without a queue would have
left. It is shown only in a cell that has no output yet, and ``clear_output`` removes it: then nothing else is cleared.
An output that comes while the line is shown, from a thread for example, is preceded by that ``clear_output``, and the
cell shows no further line. Waits in the middle of a cell's output show in the status bar and the panel only.

Any message of the cell counts as an output, also those of comms: one may open the context of an ``Output`` widget, in
which a ``clear_output`` would clear what the widget shows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import uuid4

from jupyter_client.session import DELIM

from sharedkernel import protocol
from sharedkernel.session.ui.wait_line import Wait, WaitLine, restore_line
from sharedkernel.system.deferred_signals import signals_held

#: a wait shorter than this is not worth a line in the notebook, in seconds
NOTICE_AFTER = 2.0
#: seconds between two changes of what the line says about progress
REFRESH_INTERVAL = 0.5

#: published messages of a cell that are no output
_NO_OUTPUT = ("status", "execute_input")
#: seconds for which an output waits at most for a line that is being sent
_LOCK_PATIENCE = 1.0


def show_sentence(kernel: Any, text: str) -> None:
    """Show what the executor has to say to the user, below the cell that runs or ran last (any thread).

    Parameters
    ----------
    kernel
        The session's.
    text
        One sentence.
    """
    content = {"name": "stderr", "text": f"⚠ {text}\n"}
    topic = f"kernel.{kernel.ident}.stream".encode()
    kernel.session.send(kernel.iopub_socket, "stream", content, parent=kernel.get_parent("shell"), ident=topic)


class WaitDisplay:
    """Shows waits of one kernel's cells as a display that is cleared when the wait ends.

    Parameters
    ----------
    kernel
        The ipykernel whose cells wait (made in its main thread).
    out_of_turn
        Returns a context in which what this thread publishes does not wait for earlier outputs.
    """

    def __init__(self, kernel: Any, out_of_turn: Callable[[], AbstractContextManager[None]]) -> None:
        self._kernel = kernel
        self._out_of_turn = out_of_turn
        self._pid = os.getpid()
        # Reentrant: the line itself passes the lookout for outputs.
        self._lock = threading.RLock()
        #: name of this session's host, where there are several
        self.host = ""
        self._wait = self._new_wait()
        #: ids of the requests of cells that run and have shown nothing
        self._without_output: set[str] = set()
        #: the request of the cell that shows the line; None: no cell does
        self._parent: dict[str, Any] | None = None
        self._display_id = ""
        self._sent: dict[str, str] = {}
        #: the thread that sends the line at the moment
        self._sender: int | None = None

    # --- what cells show besides --------------------------------------------------------------------------------------

    def attend(self, app: Any) -> None:
        """Look from now on for outputs among what the kernel application *app* publishes."""
        outputs = app.iopub_thread
        send = outputs.send_multipart

        def look_and_send(frames: Sequence[Any], *args: Any, **kwargs: Any) -> None:
            if self._without_output:
                self._look(frames)
            send(frames, *args, **kwargs)

        outputs.send_multipart = look_and_send

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Let the cell that runs in this thread show a line until its first output."""
        request = _id(self._kernel.get_parent())
        self._without_output.add(request)
        try:
            yield
        finally:
            self._without_output.discard(request)

    def _look(self, frames: Sequence[Any]) -> None:
        """Remove the line before the first output of its cell."""
        if self._sender == threading.get_ident() or os.getpid() != self._pid:
            return
        cell = self._cell_of_output(frames)
        if cell not in self._without_output:
            return
        with signals_held():
            # A flood may block who sends the line until this thread, which sends outputs, takes them.
            is_locked = self._lock.acquire(timeout=_LOCK_PATIENCE)
            try:
                if is_locked and self._parent is not None and _id(self._parent) == cell:
                    self._clear()
            finally:
                # Not before it is cleared: until then outputs of other threads wait for the lock.
                self._without_output.discard(cell)
                if is_locked:
                    self._lock.release()

    def _cell_of_output(self, frames: Sequence[Any]) -> str | None:
        """Return the id of the request that a published message is an output of; None if it is no output."""
        start = next((place for place, frame in enumerate(frames) if bytes(frame) == DELIM), len(frames)) + 2
        if len(frames) < start + 2:
            return None
        unpack = self._kernel.session.unpack
        is_output = unpack(bytes(frames[start])).get("msg_type") not in _NO_OUTPUT
        return unpack(bytes(frames[start + 1])).get("msg_id") if is_output else None

    # --- the line -----------------------------------------------------------------------------------------------------

    @property
    def is_shown(self) -> bool:
        """Whether the line is in the cell now."""
        return self._parent is not None

    def wait_begins(self) -> None:
        """Record that a wait begins, before the executor has sent anything about it."""
        with self._lock:
            self._wait = self._new_wait()

    def show(self, *, has_executor: bool = True) -> None:
        """Show the line in the cell that runs in this thread, if that has no output yet.

        Parameters
        ----------
        has_executor
            Whether there is an executor to wait for; the line says so if there is none.
        """
        with self._lock:
            self._show(self._wait.line(time.monotonic(), has_executor=has_executor))

    def update(self, message: protocol.Waiting) -> None:
        """Change what it says to the executor's *message* (any thread), now or once it is shown."""
        with self._lock:
            now = time.monotonic()
            self._wait.take(message, now)
            self._change(self._wait.line(now))

    def refresh(self, *, has_executor: bool = True) -> None:
        """Move its bar on with the time, if it is shown; *has_executor* as in :meth:`show`."""
        with self._lock:
            self._change(self._wait.line(time.monotonic(), has_executor=has_executor))

    def show_restored(self, done: int, total: int) -> None:
        """Show that *done* of *total* bytes are back."""
        with self._lock:
            self._show(restore_line(done, total))

    def end(self) -> None:
        """Remove the line, if it is shown."""
        with self._lock:
            self._wait = self._new_wait()
            if self._parent is not None:
                self._clear()

    def _new_wait(self) -> Wait:
        return Wait(time.monotonic(), self.host)

    def _show(self, line: WaitLine) -> None:
        if self._parent is not None:
            self._change(line)
            return
        parent = self._kernel.get_parent()
        if _id(parent) in self._without_output:
            self._parent, self._display_id, self._sent = parent, uuid4().hex, line.data()
            self._send_data("display_data")

    def _change(self, line: WaitLine) -> None:
        """Say something else, where the line is shown."""
        if self._parent is not None and (data := line.data()) != self._sent:
            self._sent = data
            self._send_data("update_display_data")

    def _clear(self) -> None:
        self._send("clear_output", {"wait": False})
        self._parent = None

    def _send_data(self, kind: str) -> None:
        self._send(kind, {"data": self._sent, "metadata": {}, "transient": {"display_id": self._display_id}})

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        """Publish a message of the cell that shows the line, with the lock held."""
        kernel = self._kernel
        ident = f"kernel.{kernel.ident}.{kind}".encode()
        self._sender = threading.get_ident()
        try:
            with self._out_of_turn():  # the thread that receives the executor's messages waits for the lock
                kernel.session.send(kernel.iopub_socket, kind, content, parent=self._parent, ident=ident)
        finally:
            self._sender = None


class RestoreProgress:
    """Tells in *notice* how far the way back of a session's memory has come, unless it is quick."""

    def __init__(self, notice: WaitDisplay) -> None:
        self._notice = notice
        self._next = time.monotonic() + (0.0 if notice.is_shown else NOTICE_AFTER)

    def tell(self, done: int, total: int) -> None:
        """Show that *done* of *total* bytes are back, unless that was shown a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REFRESH_INTERVAL
            self._notice.show_restored(done, total)


def _id(request: dict[str, Any]) -> str:
    return str(request.get("header", {}).get("msg_id", ""))
