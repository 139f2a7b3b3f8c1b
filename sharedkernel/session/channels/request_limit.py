"""The limit on what waits for a session that is busy.

A thread of ipykernel's reads the shell channel all the time and passes everything on to the thread that will handle it,
which may be in the middle of a cell for hours. What waits there is memory of the session's, counts against its user's
quota like any other, and at the limit not even an interrupt gets through. So it has a limit of its own, and beyond that
messages are answered with an error.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

from jupyter_client.session import DELIM

#: twice the longest message that a gateway lets through unless it is told otherwise
DEFAULT_LIMIT = 128 << 20


class RequestLimit:
    """Counts the messages that were passed on and are not handled yet; every method may be called by any thread.

    Parameters
    ----------
    limit_bytes
        How much may wait; a message alone may be longer.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        #: subshell (None: the main one) and bytes of each message that waits
        self._waiting: dict[bytes, tuple[str | None, int]] = {}
        self._size = 0

    def add(self, frames: Sequence[Any], subshell: str | None, subshells: Collection[str]) -> bool:
        """Count a message with its identities for *subshell*; False if there is no room for it.

        Parameters
        ----------
        frames
            As they came.
        subshell, subshells
            Whose it is, and all there are now: what waited for one that is gone is not handled any more.
        """
        size = sum(map(len, frames))
        with self._lock:
            if self._waiting and self._size + size > self.limit_bytes:
                self._forget_but(subshells)
            if self._waiting and self._size + size > self.limit_bytes:
                return False
            self._take(_key(frames))
            self._waiting[_key(frames)] = subshell, size
            self._size += size
            return True

    def take(self, frames: Sequence[Any]) -> None:
        """Record that the message of these *frames* is being handled."""
        with self._lock:
            self._take(_key(frames))

    def _take(self, key: bytes) -> None:
        _, size = self._waiting.pop(key, (None, 0))
        self._size -= size

    def _forget_but(self, subshells: Collection[str]) -> None:
        waiting = self._waiting.items()
        for key in [key for key, (whose, _) in waiting if whose is not None and whose not in subshells]:
            self._take(key)


def _key(frames: Sequence[Any]) -> bytes:
    """Return what tells a message from others: its signature and header."""
    for place, frame in enumerate(frames):
        if len(frame) == len(DELIM) and bytes(frame) == DELIM:
            return b"".join(map(bytes, frames[place + 1 : place + 3]))
    return b""  # ipykernel's own, from one of its threads to another
