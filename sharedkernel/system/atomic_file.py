"""Replace a small file as a whole: readers see the old content or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: the file's numeric user and group ids
Owner = tuple[int, int]


def replace_file(
    path: Path, content: str | bytes, *, mode: int | None = 0o600, owner: Owner | None = None, durable: bool = True
) -> None:
    """Write *content* to a new file and put it in the place of *path*.

    Parameters
    ----------
    path
        The file to replace or to make; its directory must exist.
    content
        Text is encoded as UTF-8.
    mode
        Permission bits of the new file, whatever the umask; None: 0666 less the umask.
    owner
        Owner and group of the new file. Only root can give files away: for other accounts a refusal is ignored.
    durable
        Whether the content must be on the disk when the old file goes. It takes milliseconds.

    Raises
    ------
    OSError
        When the file cannot be written; *path* is then as it was.
    """
    fresh = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(fresh, flags, 0o666 if mode is None else mode & 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if owner is not None:
                _change_owner(descriptor, owner)
            if mode is not None:
                # By descriptor where the system can: in a directory of another account the name may lead elsewhere.
                os.chmod(descriptor if os.chmod in os.supports_fd else fresh, mode)
            if durable:
                os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


@contextlib.contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Close *descriptor* at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _change_owner(descriptor: int, owner: Owner) -> None:
    try:
        os.fchown(descriptor, *owner)
    except PermissionError:
        if os.geteuid() == 0:
            raise  # as on another machine's disk: the intended owner could not read the file
