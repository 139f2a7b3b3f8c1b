"""The line under a waiting cell: why it waits, its place in the queue and for how long, gone when it starts."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol
from uuid import uuid4

from sharedkernel import protocol
from sharedkernel.session.outputs import out_of_turn
from sharedkernel.session.wait_line import Wait, WaitLine, restore_line

#: a wait shorter than this is not worth a line in the notebook, in seconds
NOTICE_AFTER = 0.2
#: seconds between two changes of what the line says about progress
REFRESH_INTERVAL = 0.5

#: shown in place of a line that is gone: nothing, which takes no room in JupyterLab
_NOTHING = {"text/plain": "", "text/html": ""}


class Notice(Protocol):
    """Shows why a cell waits."""

    def wait_begins(self) -> None:
        """Take note that a wait begins, before the executor can say anything of it."""

    def show(self, *, has_executor: bool = True) -> None:
        """Show the line under the cell that runs in this thread."""

    def update(self, message: protocol.Waiting) -> None:
        """Change what it says (any thread)."""

    def refresh(self, *, has_executor: bool = True) -> None:
        """Move its bar on with the time, and say whether there is an executor to wait for, if it is shown."""

    def show_restored(self, done: int, total: int) -> None:
        """Show how many bytes are back, of all there are."""

    def end(self) -> None:
        """Remove it, if shown."""


def show_sentence(kernel: Any, text: str) -> None:
    """Show what the executor has to say to the user, below the cell that runs or ran last (any thread)."""
    content = {"name": "stderr", "text": f"⚠ {text}\n"}
    topic = f"kernel.{kernel.ident}.stream".encode()
    kernel.session.send(kernel.iopub_socket, "stream", content, parent=kernel.get_parent("shell"), ident=topic)


class WaitNotice:
    """Shows waits of one kernel's cells as updatable display data: one display for all waits of a cell.

    Parameters
    ----------
    kernel
        The ipykernel whose cells wait (made in its main thread).
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._wait = Wait(time.monotonic())
        self._display_id: str | None = None
        #: the request whose output has the display
        self._parent: dict[str, Any] = {}
        self._is_shown = False
        self._sent: dict[str, str] = _NOTHING
        kernel.shell.display_pub.register_hook(self._look_for_clearing)

    def wait_begins(self) -> None:
        """Take note that a wait begins, before the executor can say anything of it."""
        with self._lock:
            self._wait = Wait(time.monotonic())

    def show(self, *, has_executor: bool = True) -> None:
        """Show the line under the cell that runs in this thread."""
        with self._lock:
            self._show(self._wait.line(time.monotonic(), has_executor=has_executor))

    def update(self, message: protocol.Waiting) -> None:
        """Change the line, if it is shown; else keep it for the moment it is (any thread)."""
        with self._lock:
            now = time.monotonic()
            self._wait.take(message, now)
            if self._is_shown:
                self._send(self._wait.line(now).data())

    def refresh(self, *, has_executor: bool = True) -> None:
        """Move its bar on with the time, and say whether there is an executor to wait for, if it is shown."""
        with self._lock:
            if self._is_shown:
                self._send(self._wait.line(time.monotonic(), has_executor=has_executor).data())

    def show_restored(self, done: int, total: int) -> None:
        """Show how many bytes are back, of all there are."""
        with self._lock:
            self._show(restore_line(done, total))

    def end(self) -> None:
        """Take the line away."""
        with self._lock:
            self._wait = Wait(time.monotonic())
            if self._is_shown:
                self._send(_NOTHING)
                self._is_shown = False

    def _look_for_clearing(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take note that the cell cleared its output, and with it the display."""
        if message["header"]["msg_type"] == "clear_output":
            self._display_id = None
        return message

    def _show(self, line: WaitLine) -> None:
        parent = self._kernel.get_parent()
        if parent.get("header", {}).get("msg_id") != self._parent.get("header", {}).get("msg_id"):
            self._parent, self._display_id = parent, None
        self._is_shown = True
        self._send(line.data())

    def _send(self, data: dict[str, str]) -> None:
        """Send what has changed, with the lock held."""
        kind = "update_display_data"
        if self._display_id is None:
            self._display_id, kind = uuid4().hex, "display_data"
        elif data == self._sent:
            return
        self._sent = data
        kernel = self._kernel
        content = {"data": data, "metadata": {}, "transient": {"display_id": self._display_id}}
        ident = f"kernel.{kernel.ident}.{kind}".encode()
        with out_of_turn():  # the thread that hears the executor waits for the lock
            kernel.session.send(kernel.iopub_socket, kind, content, parent=self._parent, ident=ident)


class Progress:
    """Tells in *notice* how far the way back of a session's memory has come, unless it is quick."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._next = time.monotonic() + NOTICE_AFTER
        self._is_shown = False

    def tell(self, done: int, total: int) -> None:
        """Take note of the bytes that are back, of all there are."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REFRESH_INTERVAL
        self._is_shown = True
        self._notice.show_restored(done, total)

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._notice.end()
