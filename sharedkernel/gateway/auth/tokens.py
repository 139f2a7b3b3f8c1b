"""Users' tokens: a private file of salted hashes, and the command that manages it.

A token is shown once, when it is made, and cannot be recovered from the file. Tokens are random (256 bits), so one
round of a salted hash is enough, and a check takes microseconds.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir
from traitlets import Bool, Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import ConfigError
from sharedkernel.system.atomic_file import Owner, replace_file

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_PREFIX = "sk"


def default_tokens_file() -> Path:
    """Return the default path of the file of tokens."""
    return Path(jupyter_config_dir()) / "sharedkernel_tokens.json"


def is_user_name(name: str) -> bool:
    """Whether *name* is a valid user name: short and plain, since logs, status and metrics contain it."""
    return _USER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token in the file."""

    user: str
    salt: str
    #: hexadecimal SHA-256 of salt and secret
    hash: str
    #: date and time it was made, UTC, ISO 8601
    created: str

    def matches(self, secret: str) -> bool:
        """Whether *secret* is the one that was hashed; takes the same time either way."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


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
        ConfigError
            As :meth:`tokens` does.
        """
        prefix, _, rest = token.partition("-")
        name, _, secret = rest.partition("-")
        if prefix != _PREFIX:
            return None
        stored = self.tokens().get(name)
        return stored.user if stored is not None and stored.matches(secret) else None

    def tokens(self) -> dict[str, StoredToken]:
        """Return the file's current tokens by id.

        Raises
        ------
        ConfigError
            When the file cannot be read, is open to others, or was there and is gone.
        """
        try:
            found = self.path.stat()
        except OSError as error:
            # Before the first token there is no file. But a file that disappears, perhaps with its file system, does
            # not revoke tokens: removing them from it does.
            if isinstance(error, FileNotFoundError) and self._seen is None:
                return {}
            raise ConfigError(f"{self.path} cannot be read as a file of tokens ({error.strerror}).") from None
        seen = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
        if seen != self._seen:
            self._check_private(found)
            try:
                self._tokens = _parse(self.path.read_text())
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{self.path} cannot be read as a file of tokens ({error}).") from None
            self._seen = seen
        return self._tokens

    def _check_private(self, found: os.stat_result) -> None:
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(f"{self.path} is open to other users; run `chmod 600 {self.path}`.")

    def add(self, user: str) -> str:
        """Make a token for *user* and return it; it cannot be read later.

        Raises
        ------
        ConfigError
            When the name cannot be used, or the file cannot be written.
        """
        if not is_user_name(user):
            raise ConfigError(
                f"{user!r} cannot be a user's name; use up to 64 letters, digits and . _ @ + - (not as the first)."
            )
        name, salt, secret = secrets.token_hex(4), secrets.token_hex(16), secrets.token_hex(32)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with self._changing() as tokens:
            tokens[name] = StoredToken(user=user, salt=salt, hash=_hash(salt, secret), created=created)
        return f"{token_id(name)}-{secret}"

    def remove(self, what: str) -> int:
        """Remove all tokens of the user *what*, or the token with the id *what*, and return their number.

        Raises
        ------
        ConfigError
            When the file cannot be read or written.
        """
        with self._changing() as tokens:
            named = [name for name, token in tokens.items() if token.user == what]
            named = named or [name for name in tokens if token_id(name) == what]
            for name in named:
                del tokens[name]
        return len(named)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, StoredToken]]:
        """Yield the tokens to change, under a lock; readers see the old file or the new one.

        The new file gets the old one's owner, or the directory's if there was none: the gateway's account can still
        read what root has changed.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"cannot write tokens to {self.path}: {error.strerror}.") from None
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            tokens, old = self._read_own()
            yield tokens
            content = json.dumps({"version": 1, "tokens": {name: asdict(token) for name, token in tokens.items()}})
            owner, mode = old or (_owner(os.fstat(directory)), 0o600)
            replace_file(self.path, content + "\n", mode=mode, owner=owner)
        except OSError as error:
            raise ConfigError(f"cannot write tokens to {self.path}: {error.strerror}.") from None
        finally:
            os.close(directory)

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
        with open(descriptor) as file:
            found = os.fstat(descriptor)
            self._check_private(found)
            try:
                tokens = _parse(file.read())
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{self.path} cannot be read as a file of tokens ({error}).") from None
        return tokens, (_owner(found), stat.S_IMODE(found.st_mode))


def _parse(content: str) -> dict[str, StoredToken]:
    return {name: StoredToken(**token) for name, token in json.loads(content)["tokens"].items()}


def _owner(found: os.stat_result) -> Owner:
    return found.st_uid, found.st_gid


def token_id(name: str) -> str:
    """Return the public beginning of a token, which identifies it."""
    return f"{_PREFIX}-{name}"


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}{secret}".encode()).hexdigest()


class TokenApp(CommandApp):
    """Adds, lists and removes users' tokens."""

    name = "token"
    description = 'Manage the tokens by which a gateway with `identity = "tokens"` knows its users.'
    examples = """
        sharedkernel token add ada        # prints a new token for ada, once
        sharedkernel token list
        sharedkernel token remove ada     # none of ada's tokens lets anybody in any more
        sharedkernel token remove sk-1a2b3c4d   # only the one that begins so, see the list
    """
    accepts_arguments = True

    tokens_file = Unicode(help="The file of tokens; as `c.SharedKernelGateway.tokens_file`.").tag(config=True)
    json = Bool(False, help="Print JSON instead of text.").tag(config=True)

    def start(self) -> None:
        """Run the subcommand.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 if the file cannot be used or there was nothing to remove.
        """
        file = TokenFile(Path(self.tokens_file) if self.tokens_file else default_tokens_file())
        try:
            match self.extra_args:
                case ["add", user]:
                    token = file.add(user)
                    self._print({"user": user, "token": token}, token)
                case ["list"]:
                    self._list(file)
                case ["remove", what]:
                    user = {token_id(name): token.user for name, token in file.tokens().items()}.get(what, what)
                    if not (count := file.remove(what)):
                        fail(f"there is no token of {what!r} in {file.path}; see `sharedkernel token list`.")
                    self._print({"user": user, "removed": count}, f"removed {count} token(s) of {user}")
                case _:
                    fail("use `token add NAME`, `token list`, `token remove NAME` or `token remove ID`.", status=2)
        except ConfigError as error:
            fail(str(error))

    def _list(self, file: TokenFile) -> None:
        rows = sorted((token.user, token.created, token_id(name)) for name, token in file.tokens().items())
        if self.json:
            self._print([{"user": user, "created": created, "id": id} for user, created, id in rows], "")
            return
        from rich.console import Console  # here, since gateways import this module without rich
        from rich.table import Table

        table = Table("user", "created (UTC)", "begins with")
        for row in rows:
            table.add_row(*row)
        Console().print(
            table if rows else f"There are no tokens in {file.path}; make one with `sharedkernel token add`."
        )

    def _print(self, document: Any, text: str) -> None:
        print(json.dumps(document) if self.json else text)  # noqa: T201
