"""Isolation of users' sessions on this machine, and the limits of its protection.

Three kinds, decided once at the start of an executor:

- ``users``: started as root, each user's sessions run under an account of their own (`accounts.py`), with limits on
  processes, files and, where control groups can be made, memory. The operating system keeps users apart.
- ``homes``: all sessions run under the executor's own account, and each user has a home of their own: users do not
  come across each other's files and packages, but could if they tried.
- ``none``: all sessions run under the executor's own account, in its home.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import logging
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.isolation.accounts import (
    Accounts,
    Numbers,
    closed_ancestor,
    directory_name,
    make_directory_of,
    make_shared_directory,
    parse_uid_range,
)
from sharedkernel.executor.isolation.cgroups import Cgroups, find_base
from sharedkernel.paths import GATEWAY_DIRECTORY, OFFLOAD_VARIABLE, SERVERS_DIRECTORY, make_private_directory
from sharedkernel.system.lock_file import lend_gateway_lock
from sharedkernel.system.processes import may_look_into_others

log = logging.getLogger(__name__)

#: where homes are when nothing else is said, as root
DEFAULT_HOMES = Path("/var/lib/sharedkernel/homes")
#: users' own directories among their homes, for sockets and session logs; not in the runtime directory, where the
#: services need the space that users could take
USERS_DIRECTORY = ".run"
#: most bytes of the path of homes: a session's socket in a user's directory there adds 24, and its path holds 107
LONGEST_HOMES = 83


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions:
    """The admin's settings; see the executor's options of the same names."""

    isolate: str = "auto"
    uid_range: str = ""
    homes: str = ""
    gateway_user: str = ""
    device_groups: Sequence[str] = ("video", "render")
    #: bytes; None: any
    user_memory: int | None = None
    user_processes: int = 4096
    session_files: int = 8192


class Isolation:
    """Says under which account, and in which home, a user's sessions run.

    Parameters
    ----------
    options
        What the admin wants.
    runtime_directory
        Of the executor; made here where others have to pass through it.
    passages
        Directories of ours on the way to it, alike.

    Raises
    ------
    ConfigError
        When it cannot be had.
    """

    def __init__(self, options: IsolationOptions, runtime_directory: Path, passages: Sequence[Path] = ()) -> None:
        self.kind = _decide(options)
        self._options = options
        self._accounts: Accounts | None = None
        #: directory of users' homes; None: they have none of their own
        self.homes: Path | None = None
        self._passages = [*passages, runtime_directory]
        #: who may ask for anything besides the executor's own user; None: nobody
        self.gateway = _gateway_account(options, self.kind)
        #: of users; None: sessions are not apart, or none can be made
        self.cgroups: Cgroups | None = None
        #: why limits by control groups do not hold, for people; None: they do
        self._without: str | None = None
        if self.kind == "none":
            return
        self.homes = Path(options.homes) if options.homes else DEFAULT_HOMES
        make_shared_directory(self.homes, named_by="--homes")
        if self.kind == "users":
            uids = parse_uid_range(options.uid_range) if options.uid_range else None
            numbers = None if uids is None else Numbers(self.homes, uids)
            self._accounts = Accounts(numbers, _existing_groups(options.device_groups))
            self.make_directories()
            make_shared_directory(self.homes / USERS_DIRECTORY, named_by="--homes")
            _check_passable(runtime_directory, "--runtime-dir")
            _check_passable(self.homes, "--homes")
            _check_homes(self.homes, runtime_directory)
            self._open_cgroups()

    def make_directories(self) -> None:
        """Make the runtime directory, through which users' processes pass, and what the gateway has there.

        Raises
        ------
        ConfigError
            When something else is in its place.
        """
        for folder in self._passages:
            make_shared_directory(folder, named_by="--runtime-dir")
        if self.gateway is not None:
            _lend_to_gateway(self._passages[0], self.gateway)

    def _open_cgroups(self) -> None:
        name = "sharedkernel-" + hashlib.sha256(os.fsencode(self._passages[-1])).hexdigest()[:8]
        try:
            self.cgroups = Cgroups(
                find_base(name), memory_bytes=self._options.user_memory, num_processes=self._options.user_processes
            )
        except OSError as error:
            self._without = str(error)
            return
        if self.cgroups.missing:
            self._without = f"this machine's control groups have no controller for {', '.join(self.cgroups.missing)}"

    @property
    def uses_accounts(self) -> bool:
        """Whether sessions run under other accounts than the executor's."""
        return self._accounts is not None

    @property
    def sentence(self) -> str:
        """The protection of users from each other and its limits, as text."""
        if self.kind == "users":
            apart = "Each user's sessions run under an account of their own"
            if self._without is None:
                return f"{apart}, with limits on what they have of the machine together."
            return f"{apart}; what they have of the machine together is not limited: {self._without}."
        name = _own_name()
        return (
            f"All sessions run as {name}: a notebook can read and change what {name} can, and read, change and end "
            "other users' sessions; start the executor with --isolate users, as root, to keep users apart."
        )

    def make_sessions_directory(self, path: Path) -> None:
        """Make the directory of the sessions' sockets: ours alone, or ours and the gateway's."""
        make_private_directory(path)
        if self.gateway is not None:
            # What is made in it belongs to its group. Users never come here: a session has its sockets before its user.
            os.chown(path, os.getuid(), self.gateway.pw_gid)
            # A unit with RestrictSUIDSGID= forbids the bit, and starts us with that group instead.
            path.chmod(0o710 if os.getegid() == self.gateway.pw_gid else 0o2710)

    def make_servers_directory(self) -> Path:
        """Make, and return, the directory of users' own servers, which all executors of this host share."""
        path = self._passages[0] / SERVERS_DIRECTORY
        self.make_sessions_directory(path)
        return path

    def is_trusted(self, uid: int) -> bool:
        """Whether processes of the user id *uid* may ask for anything."""
        return uid in (0, os.getuid()) or (self.gateway is not None and uid == self.gateway.pw_uid)

    def check_python(self, python: str, folders: Sequence[str]) -> None:
        """See that other accounts can use the interpreter *python* and import from *folders*.

        Raises
        ------
        ConfigError
            When they cannot.
        """
        if not self.uses_accounts:
            return
        for path in map(Path, (python, *folders)):
            if path.exists() and (closed := closed_ancestor(path)) is not None:
                raise ConfigError(
                    f"users' accounts cannot pass {closed}, so they could not use {python}; install Python and "
                    "sharedkernel where every user may read them, such as /opt."
                )

    def find(self, user: str) -> protocol.Account | None:
        """Return *user*'s account, with directories that exist; None: the executor's own in its home. May block.

        Raises
        ------
        Refused
            When the user has no account, or a directory of theirs cannot be made.
        """
        if self.homes is None:
            return None
        if self._accounts is None:
            home = make_directory_of(self.homes, directory_name(user), os.getuid(), os.getgid())
            return protocol.Account(name=user, home=str(home))
        account = self._accounts.find(user)
        uid, gid = account.uid, account.gid
        assert uid is not None
        assert gid is not None
        home = Path(account.home)
        if not account.home or not home.is_dir():
            home = make_directory_of(self.homes, directory_name(user), uid, gid)
        return msgspec.structs.replace(
            account,
            home=str(home),
            runtime_directory=str(make_directory_of(self.homes / USERS_DIRECTORY, str(uid), uid, gid)),
            offload_directory=self._offload_directory(uid, gid),
            rlimits={"NPROC": self._options.user_processes, "NOFILE": self._options.session_files, "CORE": 0},
        )

    def forget(self, uid: int, pid: int, log_name: str | None) -> None:
        """Remove what the session of the process *pid* has left in its user's directory; *log_name* its log."""
        if self.homes is None or self._accounts is None:
            return
        for name in (str(pid), log_name):
            if name is not None:
                with contextlib.suppress(OSError):  # the user's to remove, too
                    (self.homes / USERS_DIRECTORY / str(uid) / name).unlink(missing_ok=True)

    @staticmethod
    def _offload_directory(uid: int, gid: int) -> str | None:
        named = os.environ.get(OFFLOAD_VARIABLE)
        if not named:
            return None
        parent = make_shared_directory(Path(named), named_by=OFFLOAD_VARIABLE)
        return str(make_directory_of(parent, str(uid), uid, gid))


def _decide(options: IsolationOptions) -> str:
    is_root = os.getuid() == 0
    if options.isolate == "users" and not is_root:
        raise ConfigError(
            "only root can run sessions under users' own accounts; start the executor as root, or use --isolate off."
        )
    if options.uid_range and not is_root:
        raise ConfigError("only root can give out user ids; start the executor as root, or leave --uid-range away.")
    if options.isolate == "users" or (options.isolate == "auto" and options.uid_range):
        if not may_look_into_others():
            raise ConfigError(
                "to run sessions under users' own accounts takes the capability CAP_SYS_PTRACE: without it the next "
                "executor could not adopt them. Give it to the executor (`--cap-add SYS_PTRACE` for a container), or "
                "use --isolate off."
            )
        return "users"
    return "homes" if options.homes else "none"


def _gateway_account(options: IsolationOptions, kind: str) -> pwd.struct_passwd | None:
    if not options.gateway_user:
        return None
    if kind != "users":
        raise ConfigError("--gateway-user goes with --isolate users; without, gateway and executor run as one user.")
    try:
        return pwd.getpwnam(options.gateway_user)
    except KeyError:
        raise ConfigError(f"there is no account {options.gateway_user!r} here; create it, or name another.") from None


def _lend_to_gateway(directory: Path, account: pwd.struct_passwd) -> None:
    """Make what a gateway of *account*, which may make nothing in *directory*, has there."""
    try:
        make_directory_of(directory, GATEWAY_DIRECTORY, account.pw_uid, account.pw_gid)
    except Refused as refusal:  # it was another account's gateway's, whose files this one could not write
        raise ConfigError(str(refusal)) from None
    # Last: a gateway that starts beside this executor waits for it, and finds everything then.
    lend_gateway_lock(directory, account.pw_uid, account.pw_gid)


def _existing_groups(names: Sequence[str]) -> tuple[int, ...]:
    found = {entry.gr_name: entry.gr_gid for entry in grp.getgrall()}
    return tuple(sorted({found[name] for name in names if found.get(name)}))


def _check_passable(directory: Path, option: str) -> None:
    if (closed := closed_ancestor(directory)) is not None:
        raise ConfigError(
            f"users' accounts cannot pass {closed}; name another directory than {directory} with {option}."
        )


def _check_homes(homes: Path, runtime_directory: Path) -> None:
    """Make sure that sessions can have sockets below *homes*, and warn where users can fill the services' disk."""
    if len(os.fsencode(homes)) > LONGEST_HOMES:
        raise ConfigError(
            f"{homes} is too long a path for sockets; name one of at most {LONGEST_HOMES} characters with --homes."
        )
    if homes.stat().st_dev == runtime_directory.stat().st_dev:
        log.warning(
            "%s and %s are on one file system: a user who fills it keeps others from starting notebooks; put the homes "
            "on another one, or give each user a disk quota.",
            homes,
            runtime_directory,
        )


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user id {os.getuid()}"
