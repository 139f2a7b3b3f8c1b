"""The record of what happened: one JSON line an event, bounded, written now and then, never in the way.

A disk that is full or gone stops the record, is said once in the log, and stops nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from sharedkernel.scheduling import events

log = logging.getLogger(__name__)

#: seconds between writes
FLUSH_INTERVAL = 1.0
#: bytes after which the file is set aside (one older file is kept)
ROTATE_BYTES = 32 << 20


class EventLog:
    """Appends lines such as ``{"now": 12.5, "event": "CellOpened", "session": "…"}`` to a file.

    Parameters
    ----------
    path
        The file; its predecessor is kept beside it with the suffix ``.1``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._lines: list[bytes] = []
        self._flush_due: asyncio.TimerHandle | None = None
        self._file: BinaryIO | None = None
        self._failed = False
        try:
            self._open()
        except OSError as error:
            self._fail(error)

    def record(self, now: float, event: events.Event) -> None:
        """Note that *event* was handled at *now*."""
        if self._failed:
            return
        self._lines.append(self._encoder.encode({"now": now, **events.to_dict(event)}))
        if self._flush_due is None:
            self._flush_due = asyncio.get_running_loop().call_later(FLUSH_INTERVAL, self._flush)

    def close(self) -> None:
        """Write what is left."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def _flush(self) -> None:
        self._flush_due = None
        lines, self._lines = self._lines, []
        if self._file is None:
            return
        try:
            self._file.write(b"\n".join(lines) + b"\n")
            if self._file.tell() > ROTATE_BYTES:
                self._file.close()
                os.replace(self._path, self._path.with_suffix(".1"))
                self._open()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self._lines.clear()
        log.warning(
            "events are no longer recorded in %s (%s); free some space and restart the executor to record them again. "
            "Nothing else is affected.",
            self._path,
            error.strerror,
        )
