"""The last use of each token, in a file beside the file of tokens.

A file of its own, so that no request rewrites the tokens, which an account that may only read them serves, too. It is
written once a minute at most: what `sharedkernel token list` shows may be a minute old.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: least seconds between two writes
_PAUSE = 60.0


def _path(tokens_file: Path) -> Path:
    return tokens_file.parent / f"{tokens_file.stem}_used.json"


def read_token_use(tokens_file: Path) -> dict[str, str]:
    """Return when tokens were last used, UTC in ISO 8601, by their id without its prefix; {} if that is not known.

    Parameters
    ----------
    tokens_file
        The file of tokens.
    """
    try:
        stored = json.loads(_path(tokens_file).read_text())["used"]
        return {str(name): str(moment) for name, moment in stored.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # nothing depends on it


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
        self._path = _path(tokens_file)
        self._known = known
        self._used = read_token_use(tokens_file)
        self._stored_at = -_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._is_writable = True

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
        try:
            replace_file(self._path, json.dumps({"version": 1, "used": self._used}) + "\n", durable=False)
        except OSError as error:
            if self._is_writable:
                log.warning("when tokens are used cannot be kept in %s (%s).", self._path, error.strerror)
            self._is_writable = False
        else:
            self._is_writable = True
