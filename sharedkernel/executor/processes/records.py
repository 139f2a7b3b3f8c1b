"""The sessions' records on disk, and their shared pages: from these the next executor adopts them.

A record is a file of two slots that have their room from the start. Each change overwrites the older slot in place, so
a full disk keeps no record from being changed, and an executor that is killed in the middle leaves the other slot. A
start whose record cannot be written is refused (`sessions/starting.py`).

A session's shared page is where it always was: open in the session's own process, whether that runs, hangs or is
stopped. A page is looked for only when its session is adopted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from sharedkernel.errors import ConfigError
from sharedkernel.executor.processes.process import PersistedSession, start_time
from sharedkernel.ipc.shared_page import is_page
from sharedkernel.paths import make_private_directory
from sharedkernel.protocol import UNREADABLE
from sharedkernel.system.atomic_file import closing_descriptor

#: before the data of a slot: its number, higher than the older slot's, the length of the data, and a sum of all three
_SLOT = struct.Struct("<QII")
#: least bytes of a slot: any record fits, also when its session changes hands, but for unusually large environments
_SLOT_BYTES = 16 << 10
#: what the system answers where this process, or the machine, can open no more files
_STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SessionRecords:
    """One file for each session's process.

    Parameters
    ----------
    directory
        Private; made by :meth:`open`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: what is in the files, by process
        self._written: dict[str, bytes] = {}

    def open(self) -> None:
        """Make the directory; whatever was written is written again."""
        make_private_directory(self._directory)
        self._written.clear()

    def write(self, kept: PersistedSession) -> None:
        """Write *kept*, if it has changed.

        Raises
        ------
        OSError
            When there is no room for it; the record is as it was.
        """
        data = msgspec.msgpack.encode(kept)
        if self._written.get(kept.process) != data:
            _overwrite(self._directory / kept.process, data)
            self._written[kept.process] = data

    def remove(self, process: str) -> None:
        """Remove the record of a process that ended."""
        self._written.pop(process, None)
        with contextlib.suppress(OSError):
            (self._directory / process).unlink(missing_ok=True)

    def living(self) -> Iterator[PersistedSession]:
        """Yield the records of processes that live.

        The other records are removed: all of them after a restart of the machine.

        Raises
        ------
        OSError
            When this process can open no more files: that it cannot look does not mean that nobody is there.
        """
        for path in list(self._directory.iterdir()):
            kept = None if path.name.startswith(".") else read_record(path)  # that was just being written
            if kept is None or start_time(kept.pid) != kept.started:
                path.unlink(missing_ok=True)
            else:
                yield kept


def read_record(path: Path) -> PersistedSession | None:
    """Return what the file *path* says; None if nothing of this version.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    with contextlib.suppress(*UNREADABLE):
        return msgspec.msgpack.decode(newest_data(path), type=PersistedSession)
    return None


def newest_data(path: Path) -> bytes:
    """Return the data of the newer slot of *path*, b"" if none was written whole.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    return max(_slots(path.read_bytes()))[1]


def find_page(kept: PersistedSession) -> int | None:
    """Open the shared page of a process where the process has it open; None where it has none.

    Raises
    ------
    ConfigError
        When this process may not look there.
    OSError
        When it can open no more files.
    """
    with _unless_starved():
        try:
            for link in Path(f"/proc/{kept.pid}/fd").iterdir():
                with _unless_starved():
                    if os.readlink(link).startswith(f"/memfd:sharedkernel-{kept.process}"):
                        # it may be another file by now, whose opening would wait
                        found = os.open(link, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                        if is_page(found):
                            return found
                        os.close(found)
        except PermissionError:  # for its own account's processes: it is just ending
            if kept.uid != os.getuid():
                raise ConfigError(
                    f"cannot look at process {kept.pid} of session {kept.session}, so no session is taken over; they "
                    "are unharmed. Start the executor with the capability CAP_SYS_PTRACE."
                ) from None
    return None


@contextlib.contextmanager
def _unless_starved() -> Iterator[None]:
    """Suppress errors of the system, unless this process can open no more files."""
    try:
        yield
    except OSError as error:
        if error.errno in _STARVED:
            raise


def _slots(content: bytes) -> list[tuple[int, bytes]]:
    """Return number and data of both slots, (0, b"") for one that was not written whole."""
    size = len(content) // 2
    found = []
    for begin in (0, size):
        number, length, checksum = _SLOT.unpack_from(content, begin) if size >= _SLOT.size else (0, 0, 0)
        data = content[begin + _SLOT.size : begin + _SLOT.size + length]
        is_whole = number > 0 and len(data) == length and _checksum(number, data) == checksum
        found.append((number, data) if is_whole else (0, b""))
    return found


def _checksum(number: int, data: bytes) -> int:
    return crc32(b"%d %d " % (number, len(data)) + data)


def _overwrite(path: Path, data: bytes) -> None:
    """Write *data* into the older slot of *path*; into a new file where there is none, or its slots are too short."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    slots, size = _slots(content), len(content) // 2
    number = max(slots)[0] + 1
    slot = _SLOT.pack(number, len(data), _checksum(number, data)) + data
    if len(slot) <= size:
        _write(path, slot, size if slots[0] > slots[1] else 0)
        return
    fresh = path.with_name(f".{path.name}")
    size = -(-len(slot) // _SLOT_BYTES) * _SLOT_BYTES
    try:
        _write(fresh, slot, 0, room=2 * size)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _write(path: Path, slot: bytes, offset: int, *, room: int = 0) -> None:
    """Write *slot* into the file *path*; with *room* into a new one that has so many bytes."""
    new = os.O_CREAT | os.O_TRUNC if room else 0
    with closing_descriptor(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | new, 0o600)) as descriptor:
        if room:
            os.posix_fallocate(descriptor, 0, room)
        if os.pwrite(descriptor, slot, offset) < len(slot):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
