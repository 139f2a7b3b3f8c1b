"""The files of a shelf: what their names say, how large they are, and whether any process still uses them.

A user's files are in a directory of the executor's own, which alone lists, makes, names and removes them. A name says
all that the next executor has to know: ``NAME.NUMBER.LENGTH.STATE``, the first escaped, the second the time in
microseconds at which the file was made, the third its bytes. Each descriptor that is lent is an opening of its own of
the file, with a shared lock on it. The lock ends with the last mapping, in whichever process, however that process
ends; a file is free once an exclusive lock can be had.

Whoever has a descriptor can change the file's bytes and its size. So no service maps a file or looks into it, and what
lies beyond its length is cut off, before it is charged to anybody.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from sharedkernel.system.atomic_file import closing_descriptor

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: of the blocks that the system counts
_BLOCK_BYTES = 512


class FileState(StrEnum):
    """Ends of files' names."""

    #: has its room, and is being written
    RESERVED = "new"
    #: can be fetched by its name
    SHELVED = "safetensors"
    #: taken off or replaced
    OFF = "off"


@dataclass(slots=True, eq=False)
class ShelfFile:
    """One file.

    Parameters
    ----------
    directory
        Of its user.
    user, name
        Whose it is, and as what it was shelved.
    number
        A later one has a higher number.
    length
        Bytes that it was made for.
    state
        What it is now.
    """

    directory: Path
    user: str
    name: str
    number: int
    length: int
    state: FileState
    #: bytes that are charged
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = in_pages(self.length)

    @property
    def path(self) -> Path:
        """Its path."""
        return self._path_in(self.state)

    def _path_in(self, state: FileState) -> Path:
        return self.directory / f"{escaped(self.name)}.{self.number}.{self.length}.{state}"

    def become(self, state: FileState) -> None:
        """Change the state.

        Raises
        ------
        OSError
            When the file is gone.
        """
        os.rename(self.path, self._path_in(state))
        self.state = state

    def create(self) -> int:
        """Make the file with room for its bytes, and return a descriptor to lend; may take seconds.

        Raises
        ------
        OSError
            When there is no room; nothing stays behind.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, max(1, self.length))
        except OSError:
            os.close(descriptor)
            self.remove()
            raise
        return descriptor

    def lend(self) -> int:
        """Return a descriptor to give away, by which it is seen how long the file is used.

        Raises
        ------
        OSError
            When the file is gone, or its user's code has locked it.
        """
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def is_in_use(self) -> bool:
        """Whether any process still has what it was lent.

        Raises
        ------
        OSError
            When the file is gone, or cannot be opened now.
        """
        with closing_descriptor(self._open()) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def measure(self) -> None:
        """Cut off what lies beyond the file's length, and charge what it takes then.

        Raises
        ------
        OSError
            When the file is gone.
        """
        found, room = self.path.stat(), in_pages(self.length)
        if found.st_size > max(1, self.length) or found.st_blocks * _BLOCK_BYTES > room:
            os.truncate(self.path, max(1, self.length))
            found = self.path.stat()
        self.size = max(room, in_pages(found.st_blocks * _BLOCK_BYTES))

    def remove(self) -> None:
        """Remove the file; for a large one that takes a while."""
        self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def in_pages(size: int) -> int:
    """Return what *size* bytes take, in bytes."""
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def escaped(text: str) -> str:
    """Return *text* as it is in the name of a file: no two texts share one, and none leads out of its directory."""
    return "".join(
        character if character.isprintable() and character not in "/%" and (at or character != ".") else _hex(character)
        for at, character in enumerate(text)
    )


def _hex(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def find_files(directory: Path) -> list[ShelfFile]:
    """Return the files of all users' directories in *directory*.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    found = []
    for folder in directory.iterdir():
        for path in folder.iterdir():
            name, number, length, state = [*path.name.rsplit(".", 3), "", "", ""][:4]
            if number.isdecimal() and length.isdecimal() and state in set(FileState):
                user, name = unquote(folder.name), unquote(name)
                file = ShelfFile(folder, user, name, int(number), int(length), FileState(state))
                file.measure()
                found.append(file)
    return found
