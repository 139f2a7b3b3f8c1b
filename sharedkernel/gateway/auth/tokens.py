"""Users' tokens: a private file of salted hashes, and beside it a file of when each was last used.

A token is shown once, when it is made, and cannot be recovered from the file. Tokens are random (256 bits), so one
round of a salted hash is enough, and a check takes microseconds.

The last uses have a file of their own, so that no request rewrites the tokens, which an account that may only read them
serves, too. It is written once a minute at most: what `sharedkernel token list` shows may be a minute old.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from jupyter_core.paths import jupyter_config_dir

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.jupyter.names import is_user_name
from sharedkernel.system.atomic_file import Owner, closing_descriptor, replace_file
from sharedkernel.system.state_file import StateFile

_PREFIX = "sk"


def default_tokens_file() -> Path:
    """Return the default path of the file of tokens."""
    return Path(jupyter_config_dir()) / "sharedkernel_tokens.json"


class StoredToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token in the file."""

    user: str
    salt: str
    #: hexadecimal SHA-256 of salt and secret
    hash: str
    #: date and time it was made, UTC, ISO 8601
    created: str
    #: when it ends and lets nobody in any more; None: it does until it is removed
    expires: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None
    #: the class with which it ends, if it came with one
    group: str | None = None

    @property
    def has_expired(self) -> bool:
        """Whether it has ended."""
        return self.expires is not None and self.expires <= datetime.datetime.now(datetime.UTC)

    def matches(self, secret: str) -> bool:
        """Whether *secret* is the one that was hashed; takes the same time either way."""
        return hmac.compare_digest(salted_hash(self.salt, secret), self.hash)


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    version: int = 1
    tokens: dict[str, StoredToken]


class TokenExpired(Refused):
    """A token was right and has ended."""

    reason = "token_expired"


class TokenFile:
    """The file of tokens, read again when it changes, so that a removed token stops working at once.

    Parameters
    ----------
    path
        The file; the first :meth:`add` makes it with mode 0600.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._tokens: dict[str, StoredToken] = {}

    def user_for(self, token: str) -> str | None:
        """Return the name of *token*'s user; None for an unknown token.

        Raises
        ------
        TokenExpired
            When it was a right one.
        ConfigError
            As :meth:`tokens` does.
        """
        prefix, _, rest = token.partition("-")
        name, _, secret = rest.partition("-")
        stored = self.tokens().get(name) if prefix == _PREFIX else None
        if stored is None or not stored.matches(secret):
            return None
        if stored.has_expired:
            raise TokenExpired(
                f"this token of {stored.user} expired at {_local(stored.expires)}; sessions that run go on, ask the "
                "gateway's admin for a new one."
            )
        return stored.user

    def tokens(self) -> dict[str, StoredToken]:
        """Return the file's current tokens by id.

        Raises
        ------
        ConfigError
            When the file cannot be read, is open to others, or was there and is gone.
        """
        try:
            found = self.path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
            if seen != self._seen:
                self._check_private(found)
                self._tokens, self._seen = self._parse(self.path.read_bytes()), seen
        except OSError as error:
            # Before the first token there is no file. But a file that disappears, perhaps with its file system, does
            # not revoke tokens: removing them from it does.
            if isinstance(error, FileNotFoundError) and self._seen is None:
                return {}
            raise ConfigError(f"{self.path} cannot be read as a file of tokens ({error.strerror}).") from None
        return self._tokens

    def _parse(self, content: bytes) -> dict[str, StoredToken]:
        try:
            return msgspec.json.decode(content, type=_Content).tokens
        except ValueError as error:
            raise ConfigError(f"{self.path} cannot be read as a file of tokens ({error}).") from None

    def _check_private(self, found: os.stat_result) -> None:
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(f"{self.path} is open to other users; run `chmod 600 {self.path}`.")

    def add(self, user: str, *, expires: datetime.datetime | None = None, group: str | None = None) -> str:
        """Make a token for one user; see :meth:`add_all`."""
        return self.add_all([user], expires=expires, group=group)[0]

    def add_all(
        self, users: Sequence[str], *, expires: datetime.datetime | None = None, group: str | None = None
    ) -> list[str]:
        """Make a token for each of *users* and return them; they cannot be read later.

        Parameters
        ----------
        users
            Names.
        expires
            When they end; None: never.
        group
            The class with which they end.

        Raises
        ------
        ConfigError
            When a name cannot be used, or the file cannot be written; nobody has a new token then.
        """
        for user in users:
            if not is_user_name(user):
                raise ConfigError(
                    f"{user!r} cannot be a user's name; use up to 64 letters, digits and . _ @ + - (not as the first)."
                )
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        made = []
        with self._changing() as tokens:
            for user in users:
                name, salt, secret = secrets.token_hex(4), secrets.token_hex(16), secrets.token_hex(32)
                hashed = salted_hash(salt, secret)
                tokens[name] = StoredToken(
                    user=user, salt=salt, hash=hashed, created=created, expires=_in_utc(expires), group=group
                )
                made.append(f"{token_id(name)}-{secret}")
        return made

    def remove(self, *whats: str) -> int:
        """Remove all tokens of each user in *whats*, and the tokens with the ids in it; return their number.

        Raises
        ------
        ConfigError
            When the file cannot be read or written.
        """
        with self._changing() as tokens:
            named = _named(tokens, whats)
            for name in named:
                del tokens[name]
        return len(named)

    def expire(self, whats: Collection[str], moment: datetime.datetime) -> None:
        """Have tokens end at another moment.

        Parameters
        ----------
        whats
            Users, all of whose tokens are meant, and ids of tokens.
        moment
            When they end.

        Raises
        ------
        ConfigError
            When the file cannot be read or written.
        """
        with self._changing() as tokens:
            for name in _named(tokens, whats):
                tokens[name] = msgspec.structs.replace(tokens[name], expires=_in_utc(moment))

    def owners(self) -> set[str]:
        """Return whose tokens these are."""
        return {token.user for token in self.tokens().values()}

    def in_group(self, group: str, users: Collection[str] | None = None) -> dict[str, str]:
        """Return the ids of the tokens that end with the class *group*, with whose they are; of *users* or of all."""
        found = {token_id(name): token for name, token in self.tokens().items() if token.group == group}
        return {name: token.user for name, token in found.items() if users is None or token.user in users}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, StoredToken]]:
        """Yield the tokens to change, under a lock; readers see the old file or the new one.

        The new file gets the old one's owner, or the directory's if there was none: the gateway's account can still
        read what root has changed.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing_descriptor(os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                tokens, old = self._read_own()
                yield tokens
                owner, mode = old or (_owner(os.fstat(directory)), 0o600)
                replace_file(self.path, msgspec.json.encode(_Content(tokens=tokens)) + b"\n", mode=mode, owner=owner)
        except OSError as error:
            raise ConfigError(f"cannot write tokens to {self.path}: {error.strerror}.") from None

    def _read_own(self) -> tuple[dict[str, StoredToken], tuple[Owner, int] | None]:
        """Return the tokens to change, and owner and mode of their file; None: there is no file.

        All from one descriptor, and not through a symbolic link: root may do this in another account's directory, and
        must not give that account a copy of a file that it may not read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}, None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ConfigError(
                    f"{self.path} is a link; name the file that it leads to with --tokens-file."
                ) from None
            raise
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            self._check_private(found)
            return self._parse(file.read()), (_owner(found), stat.S_IMODE(found.st_mode))


def _in_utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    return None if moment is None else moment.astimezone(datetime.UTC).replace(microsecond=0)


def _local(moment: datetime.datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


def _named(tokens: dict[str, StoredToken], whats: Collection[str]) -> list[str]:
    """Return which *tokens* are meant: of a word that is a user's name, all of theirs, else the one with that id."""
    users = {token.user for token in tokens.values()} & set(whats)
    return [name for name, token in tokens.items() if token.user in users or token_id(name) in set(whats) - users]


def _owner(found: os.stat_result) -> Owner:
    return found.st_uid, found.st_gid


def token_id(name: str) -> str:
    """Return the public beginning of a token, which identifies it."""
    return f"{_PREFIX}-{name}"


def salted_hash(salt: str, secret: str) -> str:
    """Return the hexadecimal SHA-256 of both."""
    return hashlib.sha256(f"{salt}{secret}".encode()).hexdigest()


#: least seconds between two writes of the last uses
_PAUSE = 60.0


def _use_path(tokens_file: Path) -> Path:
    return tokens_file.parent / f"{tokens_file.stem}_used.json"


def read_token_use(tokens_file: Path) -> dict[str, str]:
    """Return when tokens were last used, UTC in ISO 8601, by their id without its prefix; {} if that is not known.

    Parameters
    ----------
    tokens_file
        The file of tokens.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError):  # nothing depends on it
        found = msgspec.json.decode(_use_path(tokens_file).read_bytes(), type=dict)
        return msgspec.convert(found.get("used", found), dict[str, str])  # under that name in an earlier version
    return {}


class TokenUse:
    """Records the use of tokens. Needs a running event loop.

    Parameters
    ----------
    tokens_file
        The file of tokens.
    known
        Returns the ids of all tokens that there are; others are forgotten.
    """

    def __init__(self, tokens_file: Path, known: Callable[[], Collection[str]]) -> None:
        loss = "Until it can, the times of tokens' last use are known to this gateway alone."
        self._file = StateFile(_use_path(tokens_file), dict[str, str], loss=loss, durable=False)
        self._known = known
        self._used = read_token_use(tokens_file)
        self._stored_at = -_PAUSE
        self._timer: asyncio.TimerHandle | None = None

    def record(self, name: str) -> None:
        """Record that the token with the id *name* is used now."""
        self._used[name] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        if self._timer is None:
            wait = self._stored_at + _PAUSE - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self.store)

    def store(self) -> None:
        """Write what was recorded since the last time; called at the end, too."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._stored_at = time.monotonic()
        with contextlib.suppress(ConfigError):  # whoever sends a token is told
            known = self._known()
            self._used = {name: moment for name, moment in self._used.items() if name in known}
        self._file.write(self._used)
