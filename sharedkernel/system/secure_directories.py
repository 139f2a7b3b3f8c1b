"""Directories that root makes for others, without following anything that somebody else may have put there."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from urllib.parse import quote

from sharedkernel.errors import ConfigError, Refused

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_name(user: str) -> str:
    """Return a directory's name for *user*: no two users share one, and none leads out of its parent."""
    quoted = quote(user, safe="@+")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def make_shared_directory(path: Path, *, named_by: str) -> Path:
    """Make a directory (0711) in which only this process's user makes entries; others may pass through, not list it.

    Parameters
    ----------
    path
        Of the directory; its parents are made, too.
    named_by
        The option that names it, for the sentence of an error.

    Raises
    ------
    ConfigError
        When it is a link, no directory, another user's, or others may write to it.
    """
    for missing in [folder for folder in reversed(path.parents) if not folder.exists()]:
        missing.mkdir()
        missing.chmod(0o711)  # whatever the umask is
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o711)
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        raise ConfigError(f"{path} is not a directory; remove it or name another with {named_by}.") from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid():
            raise ConfigError(f"{path} belongs to another user; name another directory with {named_by}.")
        if found.st_mode & 0o022:
            raise ConfigError(
                f"others may write to {path}; run `chmod 711 {path}` or name another directory with {named_by}."
            )
        os.fchmod(descriptor, found.st_mode & 0o755 | 0o711)
    finally:
        os.close(descriptor)
    return path


def make_directory_of(parent: Path, name: str, uid: int, gid: int) -> Path:
    """Make a user's own directory (0700), if it is not there.

    Parameters
    ----------
    parent
        Made by :func:`make_shared_directory`, so nobody else can put a link there; one that is there all the same is
        not followed.
    name
        Of the directory.
    uid, gid
        Its owner.

    Raises
    ------
    Refused
        When something else is in its place, or it belongs to another user.
    """
    parent_descriptor = os.open(parent, _OPEN)
    try:
        try:
            os.mkdir(name, 0o700, dir_fd=parent_descriptor)
            is_new = True
        except FileExistsError:
            is_new = False
        try:
            descriptor = os.open(name, _OPEN, dir_fd=parent_descriptor)
        except OSError as error:
            raise Refused(
                f"{parent / name} is no directory ({error.strerror}); the admin has to remove it.", reason="account"
            ) from None
    finally:
        os.close(parent_descriptor)
    try:
        owner = os.fstat(descriptor).st_uid
        # An empty one of our own: the process that made it ended before it set the owner.
        if owner != uid and (is_new or (owner == os.getuid() and not os.listdir(descriptor))):
            os.fchown(descriptor, uid, gid)
        elif owner != uid:
            raise Refused(
                f"{parent / name} belongs to user id {owner}, not {uid}; the admin has to change that.",
                reason="account",
            )
    finally:
        os.close(descriptor)
    return parent / name


def closed_ancestor(path: Path) -> Path | None:
    """Return the first directory on the way to *path*, itself included, that other users cannot pass; None if none."""
    resolved = path.resolve()
    for folder in [*reversed(resolved.parents), resolved]:
        if not stat.S_IMODE(folder.stat().st_mode) & 0o001:
            return folder
    return None
