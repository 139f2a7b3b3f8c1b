"""The line under a waiting cell: why it waits and its place in the queue, gone when it starts."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol
from uuid import uuid4

from sharedkernel import protocol
from sharedkernel.units import format_bytes

#: a wait shorter than this is not worth a line in the notebook, in seconds
NOTICE_AFTER = 0.2
#: seconds between two changes of what the line says about progress
_PROGRESS_INTERVAL = 0.2

_REASONS = {
    "lane": "another session has the device",
    "memory": "device memory is full",
    "quota": "your quota is used up",
    "restore": "this notebook's memory was moved away while it was idle, and there is no room for it yet",
}


class Notice(Protocol):
    """Shows why a cell waits."""

    def begin(self) -> None:
        """Show the line under the cell that runs in this thread."""

    def update(self, message: protocol.Waiting) -> None:
        """Change it (any thread)."""

    def tell(self, text: str) -> None:
        """Change it to *text*, if it is shown."""

    def end(self) -> None:
        """Remove it, if shown."""


def show_sentence(kernel: Any, text: str) -> None:
    """Show what the executor has to say to the user, below the cell that runs or ran last (any thread)."""
    content = {"name": "stderr", "text": f"⚠ {text}\n"}
    topic = f"kernel.{kernel.ident}.stream".encode()
    kernel.session.send(kernel.iopub_socket, "stream", content, parent=kernel.get_parent("shell"), ident=topic)


class WaitNotice:
    """Shows waits of one kernel's cells as updatable display data.

    Parameters
    ----------
    kernel
        The ipykernel whose cells wait.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._display_id: str | None = None
        self._parent: dict[str, Any] = {}
        self._latest: protocol.Waiting | None = None

    def begin(self) -> None:
        """Show the line under the cell that runs in this thread."""
        with self._lock:
            self._display_id = uuid4().hex
            self._parent = self._kernel.get_parent()
            self._send("display_data", _text(self._latest))

    def update(self, message: protocol.Waiting) -> None:
        """Change the line, if it is shown; else keep it for the moment it is (any thread)."""
        with self._lock:
            self._latest = message
            if self._display_id is not None:
                self._send("update_display_data", _text(message))

    def tell(self, text: str) -> None:
        """Change the line to *text*, if it is shown."""
        with self._lock:
            if self._display_id is not None:
                self._send("update_display_data", text)

    def end(self) -> None:
        """Take the line away."""
        with self._lock:
            self._latest = None
            if self._display_id is not None:
                self._send("update_display_data", "")
                self._display_id = None

    def _send(self, kind: str, text: str) -> None:
        content = {
            "data": {"text/plain": text},
            "metadata": {},
            "transient": {"display_id": self._display_id},
        }
        kernel = self._kernel
        kernel.session.send(
            kernel.iopub_socket, kind, content, parent=self._parent, ident=f"kernel.{kernel.ident}.{kind}".encode()
        )


def _text(message: protocol.Waiting | None) -> str:
    if message is None:
        return "⏳ Waiting for the shared device."
    place = f", place {message.position} in the queue" if message.position else ""
    holder = f" ({message.holder})" if message.holder else ""
    return f"⏳ Waiting: {_REASONS.get(message.reason, message.reason)}{holder}{place}."


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
        self._next = now + _PROGRESS_INTERVAL
        if not self._is_shown:
            self._is_shown = True
            self._notice.begin()
        self._notice.tell(f"⏳ Restoring this notebook's memory: {format_bytes(done)} of {format_bytes(total)}.")

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._notice.end()
