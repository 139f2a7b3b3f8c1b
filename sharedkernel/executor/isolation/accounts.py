"""The accounts of the operating system that users' sessions run under, and the directories that root makes for them.

A user is, in this order: who the file of numbers says; the account of that name on this machine, unless it is one of
the system's own; a new number of the range that the admin gave, kept in that file from then on and given to nobody
else, ever. Numbers and homes lie together, since the one means nothing without the other.

Directories are made without following anything that somebody else may have put there.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import re
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.system.atomic_file import closing_descriptor, replace_file

#: in the directory of homes
NUMBERS_FILE = ".uids.json"
_LOCK_FILE = ".uids.lock"
#: "nobody"
_OVERFLOW_UID = 65534
_NO_SHELLS = ("nologin", "false")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Given(msgspec.Struct, tag_field="version", tag=1):
    """The content of the file: users' numbers."""

    uids: dict[str, Annotated[int, msgspec.Meta(gt=0)]]


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
    with closing_descriptor(descriptor):
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid():
            raise ConfigError(f"{path} belongs to another user; name another directory with {named_by}.")
        if found.st_mode & 0o022:
            raise ConfigError(
                f"others may write to {path}; run `chmod 711 {path}` or name another directory with {named_by}."
            )
        os.fchmod(descriptor, found.st_mode & 0o755 | 0o711)
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
    with closing_descriptor(os.open(parent, _OPEN)) as parent_descriptor:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_descriptor)
        try:
            descriptor = os.open(name, _OPEN, dir_fd=parent_descriptor)
        except OSError as error:
            raise Refused(
                f"{parent / name} is no directory ({error.strerror}); the admin has to remove it.", reason="account"
            ) from None
    with closing_descriptor(descriptor):
        owner = os.fstat(descriptor).st_uid
        # An empty one of our own is new, or the process that made it ended before it set the owner.
        if owner != uid and owner == os.getuid() and not os.listdir(descriptor):
            os.fchown(descriptor, uid, gid)
        elif owner != uid:
            raise Refused(
                f"{parent / name} belongs to user id {owner}, not {uid}; the admin has to change that.",
                reason="account",
            )
    return parent / name


def closed_ancestor(path: Path) -> Path | None:
    """Return the first directory on the way to *path*, itself included, that other users cannot pass; None if none."""
    resolved = path.resolve()
    for folder in [*reversed(resolved.parents), resolved]:
        if not stat.S_IMODE(folder.stat().st_mode) & 0o001:
            return folder
    return None


def parse_uid_range(text: str) -> range:
    """Return the user ids of a range such as ``200000-299999``.

    Raises
    ------
    ConfigError
        When it is none, or takes in the system's own.
    """
    match = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no range of user ids; write one such as 200000-299999.")
    first, last = map(int, match.groups())
    if first > last or last >= 2**32 - 1:
        raise ConfigError(f"{text!r} is no range of user ids: the first comes before the last, both below 2^32.")
    if first < 65536:
        raise ConfigError(f"{text!r} takes in user ids of the system's own; begin at 65536 or later.")
    return range(first, last + 1)


def least_login_uid(definitions: Path = Path("/etc/login.defs")) -> int:
    """Return the least user id that a person's account has; those below are the system's own."""
    with contextlib.suppress(OSError):
        found = re.search(r"^\s*UID_MIN\s+(\d+)", definitions.read_text(), re.MULTILINE)
        if found:
            return max(1, int(found[1]))
    return 1000


class Numbers:
    """The file of user ids given out of a range.

    Parameters
    ----------
    directory
        Where it is; several executors may share it.
    uids
        The range.
    """

    def __init__(self, directory: Path, uids: range) -> None:
        self._path = directory / NUMBERS_FILE
        self._lock_path = directory / _LOCK_FILE
        self._uids = uids
        self.read()  # one that cannot be used is to be known at the start

    def read(self) -> dict[str, int]:
        """Return all users' numbers.

        Raises
        ------
        ConfigError
            When the file cannot be used; it is not written then either.
        """
        try:
            uids = msgspec.json.decode(self._path.read_bytes(), type=_Given).uids
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._path} cannot be used ({error}); restore it from a backup.") from None
        if len(set(uids.values())) < len(uids):
            raise ConfigError(f"{self._path} gives a user id to two users; restore it from a backup.")
        return uids

    def give(self, user: str) -> int:
        """Return *user*'s number, a new one if need be.

        Raises
        ------
        Refused
            When none is left.
        """
        with closing_descriptor(os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            uids = self.read()
            if user not in uids:
                uids[user] = self._next(uids)
                replace_file(self._path, msgspec.json.format(msgspec.json.encode(_Given(uids)), indent=1))
            return uids[user]

    def _next(self, given: dict[str, int]) -> int:
        taken = set(given.values())
        for uid in self._uids:
            if uid not in taken and not _is_account(uid):
                return uid
        raise Refused("no user id is left in --uid-range; the admin has to widen it.", reason="account")


class Accounts:
    """Finds users' accounts; asks the system's databases, so it may block.

    Parameters
    ----------
    numbers
        Where those without an account on this machine get a number; None: nowhere.
    device_groups
        Groups of everybody's sessions besides their own.
    """

    def __init__(self, numbers: Numbers | None, device_groups: tuple[int, ...]) -> None:
        self._numbers = numbers
        self._device_groups = device_groups
        self._least_uid = least_login_uid()

    def find(self, user: str) -> protocol.Account:
        """Return *user*'s account; without a home where that is to be in the directory of homes.

        Raises
        ------
        Refused
            When there is none.
        """
        number = None if self._numbers is None else self._numbers.read().get(user)
        entry = self._entry(user) if number is None else None
        if entry is not None:
            groups = {*os.getgrouplist(entry.pw_name, entry.pw_gid), *self._device_groups} - {0, entry.pw_gid}
            shell = entry.pw_shell if entry.pw_shell and not entry.pw_shell.endswith(_NO_SHELLS) else "/bin/sh"
            return protocol.Account(
                name=user, uid=entry.pw_uid, gid=entry.pw_gid, groups=sorted(groups), home=entry.pw_dir, shell=shell
            )
        if self._numbers is None:
            raise Refused(
                f"{user} has no account on the machine with the device; the admin has to create one, or start the "
                "executor with --uid-range.",
                reason="account",
            )
        number = number or self._numbers.give(user)
        return protocol.Account(
            name=user, uid=number, gid=number, groups=list(self._device_groups), home="", shell="/bin/sh"
        )

    def _entry(self, user: str) -> pwd.struct_passwd | None:
        """Return the machine's account of that very name, if it is a person's."""
        try:
            entry = pwd.getpwnam(user)
        except (KeyError, ValueError):  # ValueError: a name with a null byte
            return None
        # Some databases take no account of case; to us these are two users.
        is_person = entry.pw_uid >= self._least_uid and entry.pw_uid != _OVERFLOW_UID and entry.pw_gid != 0
        return entry if entry.pw_name == user and is_person else None


def _is_account(number: int) -> bool:
    """Whether *number* is some user's or group's on this machine."""
    for find in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            find(number)
            return True
    return False
