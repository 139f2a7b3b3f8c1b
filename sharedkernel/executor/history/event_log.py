"""The record of what happened: one JSON line an event, bounded, written now and then, never in the way.

A line that is no event says under which configuration the events after it were handled: the first one of an executor
(``"began"``), and the first one of a file that goes on where the file before was full (``"goes_on"``). With it the
record can be replayed (`cli/trace/recordings.py`).

A disk that is full or gone stops the record, and stops nothing else. It is tried again with each write; the log says
once when the record stops and once when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.config import SchedulerConfig

log = logging.getLogger(__name__)

#: seconds between writes
FLUSH_INTERVAL = 1.0
#: bytes after which the file is set aside (one older file is kept), and at most what part of its file system
ROTATE_BYTES, ROTATE_PART = 32 << 20, 1 / 16


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
        #: it could not be written last
        self._is_lost = False
        self._config: SchedulerConfig | None = None
        self._last = 0.0

    def begin(self, now: float, config: SchedulerConfig) -> None:
        """Record that a scheduler with *config* knows of nothing at *now*, and takes the events that follow."""
        self._config, self._last = config, now
        self._add(self._heading("began"))

    def record(self, now: float, event: events.Event) -> None:
        """Record that *event* was handled at *now*."""
        self._last = now
        if isinstance(event, events.PolicyConfigured) and self._config is not None:
            self._config = replace(self._config, policy=event.policy, backfill=event.backfill)
        self._add({"now": now, **events.to_dict(event)})

    def close(self) -> None:
        """Write what is left."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _heading(self, kind: str) -> dict[str, Any]:
        """Return a line that is no event; `unix_seconds` is the time of day at `now`."""
        config = None if self._config is None else asdict(self._config)
        return {"now": self._last, kind: {"config": config, "unix_seconds": time.time()}}

    def _add(self, line: dict[str, Any]) -> None:
        self._lines.append(self._encoder.encode(line))
        if self._flush_due is None:
            self._flush_due = asyncio.get_running_loop().call_later(FLUSH_INTERVAL, self._flush)

    def _open(self) -> BinaryIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        return self._file

    def _flush(self) -> None:
        self._flush_due = None
        lines, self._lines = self._lines, []
        try:
            file = self._file or self._open()
            if self._is_lost:
                lines = [self._encoder.encode(self._heading("goes_on"))]
            _write(file, b"\n".join(lines) + b"\n")
            if self._is_lost:
                self._is_lost = False
                log.warning("events are recorded again in %s; those in between are missing", self._path)
            found = os.statvfs(self._path)
            if file.tell() > min(ROTATE_BYTES, ROTATE_PART * found.f_frsize * found.f_blocks):
                file.close()
                os.replace(self._path, self._path.with_suffix(".1"))
                _write(self._open(), self._encoder.encode(self._heading("goes_on")) + b"\n")
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._is_lost:
            self._is_lost = True
            log.warning(
                "events are no longer recorded in %s (%s); free some space, and they are again. Nothing else is "
                "affected.",
                self._path,
                error.strerror,
            )


def _write(file: BinaryIO, data: bytes) -> None:
    """Append all of *data*, or nothing.

    Raises
    ------
    OSError
        When there is no room for it, or the file was removed.
    """
    found = os.fstat(file.fileno())
    if not found.st_nlink:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        with contextlib.suppress(OSError):  # half a line would spoil the rest
            file.truncate(found.st_size)
        raise
