"""What must outlive an executor on disk: a journal of typed records, appended in batches and made small again.

A journal is one file. It begins with the version of its records' schema; then comes one record after the other, each
with its length and a checksum. What was added is written and synced to the disk at most :data:`FLUSH_INTERVAL` later,
on a thread of the journal's own, so that nobody waits for the disk.

- A write that was torn (by a crash, or a disk that ran full) ends the journal: what was read before it counts, the rest
  is cut off.
- A file of another schema, or no journal at all, is set aside with the suffix ``.old``, and a new one begun.
- A file that has grown to :data:`COMPACT_BYTES` is replaced, in one step, by the records that its owner still needs.

If the disk is full or missing, the log says so once, and everything else continues. The journal is then tried again,
ever less often, and replaced by the records that its owner still needs; the log says once that it is kept again. Only a
file that could not be read is left alone until the next start.

Covers one writer at a time (the owner of the lock on the runtime directory). Not covered: what the records mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.executor.history.retrying import FIRST_RETRY, Retrying
from sharedkernel.protocol import UNREADABLE
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: seconds between writes
FLUSH_INTERVAL = 1.0
#: bytes from which on a file is compacted, if what is of use is less than half of it
COMPACT_BYTES = 4 << 20
#: longest record, in bytes; a longer one in a file is taken for a torn write
MAX_RECORD_BYTES = 1 << 20

_HEADER = struct.Struct(">4sI")
_FRAME = struct.Struct(">II")
_MAGIC = b"SKJ1"


class Journal:
    """An append-only file of records.

    Parameters
    ----------
    path
        The file; it is made if it is missing, readable to its owner only.
    kinds
        The records' types: a msgspec struct with a tag, or a union of such.
    schema
        Version of *kinds*: larger whenever records of the version before cannot be read as such any more. A new field
        with a default value needs no new version.
    summarise
        Returns the records that say all that is still of use, when the file is compacted; called on the event loop.
    first_retry
        Seconds until the file is tried again after the first failure.
    """

    def __init__(
        self,
        path: Path,
        kinds: Any,
        *,
        schema: int,
        summarise: Callable[[], Iterable[Any]],
        first_retry: float = FIRST_RETRY,
    ) -> None:
        self._path = path
        self._schema = schema
        self._summarise = summarise
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._descriptor = -1
        self._retrying = Retrying(first_retry)
        #: its content is known, so that it may be replaced
        self._is_read = False
        self._size = 0
        #: bytes of the file after it was compacted last
        self._compacted_size = 0
        self._pending: list[bytes] = []
        self._flush_due: asyncio.TimerHandle | None = None
        #: one thread, so that writes keep their order
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sharedkernel-journal")

    def open(self) -> list[Any]:
        """Return the records that are in the file, oldest first, and be ready to add to them.

        Call it once, before anything is added.
        """
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            found = os.fstat(self._descriptor)
            data = os.pread(self._descriptor, found.st_size, 0)
            self._is_read = stat.S_ISREG(found.st_mode)
            if data and not self._is_ours(data):
                data = b""
                self._set_aside()
            records, end = self._read(data)
            if end < len(data):
                log.warning("%s ended in a torn write; its last %d bytes are cut off", self._path, len(data) - end)
            if not end:
                end = os.pwrite(self._descriptor, _HEADER.pack(_MAGIC, self._schema), 0)
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            self._fail(error)
            return []
        self._size = self._compacted_size = end
        return records

    def add(self, record: msgspec.Struct) -> None:
        """Add *record*; it is on the disk soon, and lost if this process is killed before.

        Raises
        ------
        ValueError
            When it is longer than :data:`MAX_RECORD_BYTES`.
        """
        if self._descriptor < 0:
            if self._is_read and self._retrying.begin():
                self._pending.clear()  # it is in the summary
                self._submit(self._go_on, self._summary())
            return
        self._pending.append(self._frame(record))
        if self._flush_due is None:
            self._flush_due = asyncio.get_running_loop().call_later(FLUSH_INTERVAL, self._flush)

    def close(self) -> None:
        """Write what is left, and release the file."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush()
        self._thread.shutdown(wait=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- reading ------------------------------------------------------------------------------------------------------

    def _is_ours(self, data: bytes) -> bool:
        return len(data) >= _HEADER.size and _HEADER.unpack_from(data) == (_MAGIC, self._schema)

    def _set_aside(self) -> None:
        aside = self._path.with_suffix(".old")
        log.warning("%s was written by another version of sharedkernel, and is set aside as %s", self._path, aside)
        os.close(self._descriptor)
        os.replace(self._path, aside)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _read(self, data: bytes) -> tuple[list[Any], int]:
        """Return the records in *data*, and where the last whole one ends; 0 where there is not even a header."""
        records: list[Any] = []
        if not data:
            return records, 0
        end = _HEADER.size
        while len(data) >= end + _FRAME.size:
            length, checksum = _FRAME.unpack_from(data, end)
            body = data[end + _FRAME.size : end + _FRAME.size + length]
            if length > MAX_RECORD_BYTES or len(body) < length or zlib.crc32(body) != checksum:
                break
            try:
                records.append(self._decoder.decode(body))
            except UNREADABLE as error:
                log.warning("%s has a record that cannot be read (%s); it is left out", self._path, error)
            end += _FRAME.size + length
        return records, end

    # --- writing ------------------------------------------------------------------------------------------------------

    def _frame(self, record: msgspec.Struct) -> bytes:
        body = self._encoder.encode(record)
        if len(body) > MAX_RECORD_BYTES:
            raise ValueError(f"a {type(record).__name__} of {len(body)} bytes is too long for a journal.")
        return _FRAME.pack(len(body), zlib.crc32(body)) + body

    def _flush(self) -> None:
        """Hand what was added to the thread that writes it."""
        self._flush_due = None
        pending, self._pending = self._pending, []
        if self._descriptor < 0:
            return
        if self._size >= max(COMPACT_BYTES, 2 * self._compacted_size):
            self._submit(self._try, self._rewrite, self._summary())  # what is pending is in it
        else:
            self._size += sum(map(len, pending))
            self._submit(self._try, self._append, pending)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have the journal's thread do *work*; if no thread can be started now, it is done before the next work."""
        with contextlib.suppress(RuntimeError):  # "can't start new thread"; the work stays in the pool's queue
            self._thread.submit(work, *arguments)

    def _summary(self) -> list[bytes]:
        """Return what replaces the file."""
        frames = [self._frame(record) for record in self._summarise()]
        self._compacted_size = self._size = _HEADER.size + sum(map(len, frames))
        return frames

    def _go_on(self, frames: list[bytes]) -> None:
        """Try to keep the journal again."""
        try:
            self._rewrite(frames)
        except OSError as error:
            self._fail(error)
            return
        self._retrying.succeeded()
        log.warning("%s is kept again", self._path)

    def _try(self, write: Callable[[list[bytes]], None], frames: list[bytes]) -> None:
        if self._descriptor < 0:
            return
        try:
            write(frames)
        except OSError as error:
            self._fail(error)

    def _append(self, frames: list[bytes]) -> None:
        if not os.fstat(self._descriptor).st_nlink:  # it was removed
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with open(self._descriptor, "ab", closefd=False) as file:
            file.write(b"".join(frames))
        os.fdatasync(self._descriptor)

    def _rewrite(self, frames: list[bytes]) -> None:
        replace_file(self._path, b"".join((_HEADER.pack(_MAGIC, self._schema), *frames)))
        _sync_directory(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor

    def _fail(self, error: OSError) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        if self._retrying.failed():
            mend = "free some space, and it is" if self._is_read else "mend that and restart the executor to keep it"
            log.warning(
                "nothing more is kept in %s (%s); %s again. Nothing else is affected.", self._path, error.strerror, mend
            )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
