"""The sessions' records on disk: with them a new executor finds its sessions even where the keeper was killed as well.

The keeper has all that a new executor needs, and gives it at once. Should it be gone as well, each session's record is
in a small file, and its shared page is where it always was: open in the session's own process. What is on shelves is
lost then, but for what sessions have mapped.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from sharedkernel.executor.processes.process import PersistedSession, start_time
from sharedkernel.executor.processes.reserved_files import ReservedFiles, overwrite
from sharedkernel.ipc.shared_page import is_page
from sharedkernel.paths import make_private_directory
from sharedkernel.protocol import UNREADABLE
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: what the system answers where there is no room for another file
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: the same where this process, or the machine, can open no more files
_STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SessionRecords:
    """One file for each session's process.

    Parameters
    ----------
    directory
        Private; made by :meth:`open`.
    reserve
        The same, of room for records on a full disk.
    """

    def __init__(self, directory: Path, reserve: Path) -> None:
        self._directory = directory
        self._reserve = ReservedFiles(reserve)
        #: what is in the files, by process
        self._written: dict[str, bytes] = {}

    def open(self) -> None:
        """Make the directories; whatever was written is written again."""
        make_private_directory(self._directory)
        self._reserve.open()
        self._written.clear()

    def write(self, kept: PersistedSession) -> None:
        """Write *kept*, unless no more than its service has changed; on a full disk into room that was kept.

        A record that does not say whose client a session is now would give that client another session.
        """
        data = msgspec.msgpack.encode(msgspec.structs.replace(kept, attained=0.0))
        if self._written.get(kept.process) == data:
            return
        try:
            try:
                replace_file(self._directory / kept.process, data, durable=False)
                self._reserve.fill_up()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._write_without_room(self._directory / kept.process, data)
        except OSError as error:
            log.warning("the record of session %s was not written (%s)", kept.session, error.strerror)
            return
        self._written[kept.process] = data

    def _write_without_room(self, path: Path, data: bytes) -> None:
        try:
            overwrite(path, data)
        except OSError:  # it is a new one, or longer
            self._reserve.replace(path, data)

    def remove(self, process: str) -> None:
        """Remove the record of a process that ended."""
        self._written.pop(process, None)
        with contextlib.suppress(OSError):
            (self._directory / process).unlink(missing_ok=True)

    def others(self, known: Container[str]) -> Iterator[tuple[PersistedSession, int]]:
        """Yield the records of processes that live and are not *known*, each with a descriptor of its shared page.

        The other records are removed: all of them after a restart of the machine.

        Raises
        ------
        OSError
            When this process can open no more files: that it cannot look does not mean that nobody is there.
        """
        for path in list(self._directory.iterdir()):
            if path.name in known:
                continue
            if "." in path.name:  # the executor ended while it wrote this
                path.unlink(missing_ok=True)
                continue
            try:
                kept = msgspec.msgpack.decode(path.read_bytes(), type=PersistedSession)
            except OSError as error:
                _raise_if_starved(error)
                kept = None
            except UNREADABLE:  # torn, or of another version
                kept = None
            page = None if kept is None or start_time(kept.pid) != kept.started else _open_page(kept)
            if kept is None or page is None:
                path.unlink(missing_ok=True)
            else:
                yield kept, page


def are_there_sessions(directory: Path) -> bool:
    """Return whether any process lives that has a record in *directory*, which may be missing.

    Raises
    ------
    OSError
        When that cannot be found out now, as without a free descriptor.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError, *UNREADABLE):  # it has just ended; torn
                kept = msgspec.msgpack.decode((directory / name).read_bytes(), type=PersistedSession)
                if start_time(kept.pid) == kept.started:
                    return True
    return False


@contextlib.contextmanager
def _unless_starved() -> Iterator[None]:
    """Suppress errors of the system, unless this process can open no more files."""
    try:
        yield
    except OSError as error:
        _raise_if_starved(error)


def _raise_if_starved(error: OSError) -> None:
    if error.errno in _STARVED:
        raise error


def _open_page(kept: PersistedSession) -> int | None:
    """Open the shared page of a process where the process has it open; None where it has none."""
    with _unless_starved():
        for link in Path(f"/proc/{kept.pid}/fd").iterdir():
            with _unless_starved():
                if os.readlink(link).startswith(f"/memfd:sharedkernel-{kept.process}"):
                    # it may be another file by now, whose opening would wait
                    found = os.open(link, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                    if is_page(found):
                        return found
                    os.close(found)
    return None
