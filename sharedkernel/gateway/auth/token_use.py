"""The last use of each token, in a file beside the file of tokens.

A file of its own, so that no request rewrites the tokens, which an account that may only read them serves, too. It is
written once a minute at most: what `sharedkernel token list` shows may be a minute old.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from sharedkernel.errors import ConfigError
from sharedkernel.system.state_file import StateFile

#: least seconds between two writes
_PAUSE = 60.0


class _Content(msgspec.Struct):
    """The content of the file."""

    used: dict[str, str]


def _path(tokens_file: Path) -> Path:
    return tokens_file.parent / f"{tokens_file.stem}_used.json"


def read_token_use(tokens_file: Path) -> dict[str, str]:
    """Return when tokens were last used, UTC in ISO 8601, by their id without its prefix; {} if that is not known.

    Parameters
    ----------
    tokens_file
        The file of tokens.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError):  # nothing depends on it
        return msgspec.json.decode(_path(tokens_file).read_bytes(), type=_Content).used
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
        self._file = StateFile(_path(tokens_file), _Content, loss=loss, durable=False)
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
        self._file.write(_Content(self._used))
