"""Sign-ins on the gateway's page: a random key in a cookie stands for the token that was typed.

The token itself stays here, in memory, and is checked again with each request: a token that is taken back ends the
session at once, and a restart of the gateway ends all of them.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

#: seconds without a request after which a session ends, and seconds after which it ends in any case
_IDLE_SECONDS, _MOST_SECONDS = 12 * 3600.0, 7 * 86_400.0
#: most sessions of a user, and in all; beyond, the one that was used least recently ends
_MOST_OF_USER, _MOST = 20, 5000
#: when sessions end, in words
LIFETIME = (
    f"after {_IDLE_SECONDS / 3600:.0f} hours without use, after {_MOST_SECONDS / 86_400:.0f} days, "
    f"or at your {_MOST_OF_USER}th newer one"
)


@dataclass(slots=True)
class _PageSession:
    user: str
    token: str
    began: float
    used: float


class PageSessions:
    """The sessions by the key in their cookie, the least recently used first."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _PageSession] = OrderedDict()
        #: begins this gateway's keys, so that those of an earlier one are known as such
        self._prefix = f"{secrets.token_hex(4)}."

    def start(self, user: str, token: str) -> str:
        """Return the key of a new session of *user*, who has sent *token*."""
        now = time.monotonic()
        own = [key for key, session in self._sessions.items() if session.user == user]
        for key in own[: max(0, len(own) + 1 - _MOST_OF_USER)]:
            del self._sessions[key]
        while len(self._sessions) >= _MOST:
            self._sessions.popitem(last=False)
        key = self._prefix + secrets.token_urlsafe(32)
        self._sessions[key] = _PageSession(user, token, now, now)
        return key

    def token_of(self, key: str) -> str | None:
        """Return the token for which *key* stands; None for a session that has ended."""
        session, now = self._sessions.get(key), time.monotonic()
        if session is None:
            return None
        if now - session.used > _IDLE_SECONDS or now - session.began > _MOST_SECONDS:
            del self._sessions[key]
            return None
        session.used = now
        self._sessions.move_to_end(key)
        return session.token

    def is_earlier(self, key: str) -> bool:
        """Whether an earlier gateway has made *key*."""
        return not key.startswith(self._prefix)

    def end(self, key: str) -> None:
        """End a session, if there is one with *key*."""
        self._sessions.pop(key, None)
