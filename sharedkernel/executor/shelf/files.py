"""The files of a shelf: what their names say, how large they are, and whether any process still uses them.

A user's files are in a directory of the executor's own, which alone lists, makes, names and removes them. A name says
all that the next executor has to know: ``NAME.NUMBER.STATE``, the first escaped, the second the time in microseconds at
which the file was made. Each descriptor that is lent is an opening of its own of the file, with a shared lock on it.
The lock ends with the last mapping, in whichever process, however that process ends; a file is free once an exclusive
lock can be had.

Whoever has a descriptor can change the file's bytes and its size. So what is charged is measured, and no service maps
a file or looks into it.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

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
    state
        What it is now.
    size
        Bytes that are charged.
    """

    directory: Path
    user: str
    name: str
    number: int
    state: FileState
    size: int

    @property
    def path(self) -> Path:
        """Its path."""
        return self._path_in(self.state)

    def _path_in(self, state: FileState) -> Path:
        return self.directory / f"{escaped(self.name)}.{self.number}.{state}"

    def become(self, state: FileState) -> None:
        """Change the state.

        Raises
        ------
        OSError
            When the file is gone.
        """
        os.rename(self.path, self._path_in(state))
        self.state = state

    def create(self, size: int) -> int:
        """Make the file with room for *size* bytes, and return a descriptor to lend; may take seconds.

        Raises
        ------
        OSError
            When there is no room; nothing stays behind.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, max(1, size))
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
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def measure(self) -> None:
        """Charge what the file takes by now, but no less than before.

        Raises
        ------
        OSError
            When the file is gone.
        """
        found = self.path.stat()
        self.size = max(self.size, in_pages(found.st_size), in_pages(found.st_blocks * _BLOCK_BYTES))

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
            name, number, state = [*path.name.rsplit(".", 2), "", ""][:3]
            if number.isdecimal() and state in set(FileState):
                file = ShelfFile(folder, unquote(folder.name), unquote(name), int(number), FileState(state), 0)
                file.measure()
                found.append(file)
    return found
