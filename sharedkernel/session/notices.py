"""The line under a waiting cell: why it waits and its place in the queue, gone when it starts."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from sharedkernel import protocol

_REASONS = {
    "lane": "another session has the device",
    "memory": "device memory is full",
    "quota": "your quota is used up",
}


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
