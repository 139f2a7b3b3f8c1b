"""Room on a disk that others may fill: files that are there already, and have their size."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.paths import make_private_directory

#: files that are kept, and the bytes of each: any record fits that names a usual environment
_NUM_FILES, _BYTES = 8, 16 << 10


class ReservedFiles:
    """Small files that take the place of others when there is no room for new ones.

    Parameters
    ----------
    directory
        On the disk that may be full, in a private directory; made by :meth:`open`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> None:
        """Make the directory and its files, if there is room; those of an earlier process are used."""
        with contextlib.suppress(ConfigError):  # it lies in a private directory: nobody else can have made it
            make_private_directory(self._directory)
            self.fill_up()

    def fill_up(self) -> None:
        """Make those files that were used, if there is room for them."""
        with contextlib.suppress(OSError):
            left = set(os.listdir(self._directory))
            for name in {str(number) for number in range(_NUM_FILES)} - left:
                with _created(self._directory / name) as descriptor:
                    os.posix_fallocate(descriptor, 0, _BYTES)

    def replace(self, path: Path, data: bytes) -> None:
        """Put a file with *data* in the place of *path*, on the same disk.

        Raises
        ------
        OSError
            When no file is left, or *data* is too long for one; *path* is as it was.
        """
        for name in os.listdir(self._directory):
            overwrite(self._directory / name, data)
            os.replace(self._directory / name, path)
            return
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def overwrite(path: Path, data: bytes) -> None:
    """Write *data* into the room that the file *path* has: in one call, since a torn file would be of no use.

    Raises
    ------
    OSError
        When there is no such file, or not enough room in it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if len(data) > 512 * os.fstat(descriptor).st_blocks:  # or a part of it would be written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    """Make the file *path*, open within the context; removed where that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
