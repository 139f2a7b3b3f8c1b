"""The state that a service leaves to the next one, in one small JSON file that is replaced as a whole.

The owner hands over its whole state now and then; what changed after the last time is lost when the service is killed.
A file that cannot be read, or is of another version, is set aside with the suffix ``.old``. A disk that is full or gone
stops nothing: the log says so once, each later call tries again, and the log says once when the file is written again.

Covers one process at a time (the owner of the lock on the service's directory). Not covered: when to write, and what
the state means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

_State = TypeVar("_State")


class StateFile(Generic[_State]):
    """A state on disk.

    Parameters
    ----------
    path
        The file; it is made with the first state, readable to its owner only.
    kind
        Type of the state. A struct's tag is its version: another one whenever files of the version before cannot be
        read.
    loss
        A sentence for the log where it cannot be read or written: what is lost then.
    durable
        Whether it has to be on the disk when :meth:`write` returns; that takes milliseconds.
    """

    def __init__(
        self, path: Path, kind: type[_State], *, loss: str = "Nothing else is affected.", durable: bool = True
    ) -> None:
        self._path = path
        self._loss = loss
        self._durable = durable
        self._decoder = msgspec.json.Decoder(kind)
        #: what the file should have, and what it has
        self._wanted = self._written = b""
        self._writing = threading.Lock()
        self._is_lost = False

    def read(self) -> _State | None:
        """Return the state that the file has; None without any."""
        try:
            self._written = self._path.read_bytes()
            return self._decoder.decode(self._written)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            aside = self._path.with_suffix(".old")
            log.warning(
                "%s cannot be read (%s); it is set aside as %s, and begun anew. %s",
                self._path,
                error,
                aside,
                self._loss,
            )
            with contextlib.suppress(OSError):
                os.replace(self._path, aside)
            return None

    def _encode(self, state: _State) -> bytes:
        try:
            return msgspec.json.encode(state)
        except ValueError as error:  # a name that is no Unicode, such as half of a surrogate pair
            self._lose(error)
            return self._written

    def _lose(self, why: object) -> None:
        if not self._is_lost:
            log.warning(
                "%s cannot be written (%s); that is tried again at each change. %s", self._path, why, self._loss
            )
        self._is_lost = True

    async def keep(self, state: _State) -> None:
        """Have *state* on the disk if it changed; return once it is, or cannot be."""
        self._wanted = self._encode(state)
        if self._wanted != self._written:
            with contextlib.suppress(RuntimeError):  # "can't start new thread": the next call tries again
                await asyncio.to_thread(self._write)

    def write(self, state: _State) -> None:
        """Write *state* if it changed."""
        self._wanted = self._encode(state)
        self._write()

    def _write(self) -> None:
        with self._writing:  # a thread may start late: each writes the newest state
            content = self._wanted
            if content == self._written:
                return
            try:
                replace_file(self._path, content, durable=self._durable)
            except OSError as error:
                self._lose(error.strerror)
                return
            self._written = content
            if self._is_lost:
                log.warning("%s is written again", self._path)
            self._is_lost = False
