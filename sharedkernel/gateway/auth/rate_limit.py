"""A rate limit on wrong tokens by address, which affects only those who guess tokens.

An address that has sent too many *different* wrong tokens gets no further one checked for a while. Tokens that were
right before still work: other users behind the same address (a classroom, a proxy) are not locked out. A wrong token
that is sent repeatedly counts once: a forgotten notebook with an old token locks nobody out.

A token that is being checked counts as wrong until the answer is known. So that a classroom whose notebooks reconnect
at once does not reach the limit, only some of an address's tokens are checked at a time, and the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from sharedkernel.errors import Refused

#: most addresses, and most right tokens, that are remembered; the least recently seen are forgotten
_MAX_REMEMBERED = 10_000
#: most wrong tokens of one address that are remembered if their number is not limited
_MAX_UNLIMITED = 1000
#: seconds that a token may wait for its turn
_PATIENCE = 30.0


class TooManyAtOnce(Refused):
    """An address sends more tokens at once than can be checked soon."""

    reason = "identity_unavailable"


class TooManyFailures(Refused):
    """An address has sent too many wrong tokens."""

    reason = "too_many_failures"


class LoginLimit:
    """Counts the wrong tokens of each address.

    Parameters
    ----------
    max_failures
        Most different wrong tokens of an address within the window; 0: no limit.
    window_seconds
        How long a wrong token counts, in seconds.
    """

    def __init__(self, max_failures: int, window_seconds: float) -> None:
        self._max = max_failures
        self._window = window_seconds
        self._key = os.urandom(32)
        #: by address: times at which wrong tokens were last sent, by fingerprint
        self._failures: OrderedDict[str, dict[bytes, float]] = OrderedDict()
        #: fingerprints of tokens that were right
        self._right: OrderedDict[bytes, None] = OrderedDict()
        #: by address: permits to check tokens, so few that they alone never reach the limit
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, address: str, token: str) -> AsyncIterator[None]:
        """Wait until a token may be checked; keep the context open during the check.

        Parameters
        ----------
        address
            IP address of the client.
        token
            The token that it sent.

        Raises
        ------
        TooManyAtOnce
            When the wait takes too long.
        """
        if not self._max or self._fingerprint(token) in self._right:
            yield
            return
        turns = self._turns.setdefault(_network(address), asyncio.Semaphore(max(1, self._max // 3)))
        try:
            async with asyncio.timeout(_PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise TooManyAtOnce(
                f"too many tokens that came from {address} are being checked; yours was not checked, try again soon.",
                retry_after=_PATIENCE,
            ) from None
        try:
            yield
        finally:
            turns.release()

    def attempt(self, address: str, token: str, *, now: float) -> bool:
        """Count a token as wrong, until :meth:`succeeded` or :meth:`withdraw` is called.

        Counted before the check, so that many parallel requests cannot avoid the limit.

        Parameters
        ----------
        address
            IP address of the client.
        token
            The token that it sent.
        now
            Seconds on a monotonic clock.

        Returns
        -------
        is_new
            Whether the address sends this token for the first time within the window.

        Raises
        ------
        TooManyFailures
            When the address has sent too many others.
        """
        place, shown = _network(address), self._fingerprint(token)
        if shown in self._right:
            return False
        failures = self._failures.setdefault(place, {})
        self._failures.move_to_end(place)
        if len(self._failures) > _MAX_REMEMBERED:
            self._failures.popitem(last=False)
        for fingerprint in [known for known, when in failures.items() if now - when >= self._window]:
            del failures[fingerprint]
        is_new = shown not in failures
        if self._max and is_new and len(failures) >= self._max:
            wait = self._window - (now - min(failures.values()))
            raise TooManyFailures(
                f"too many wrong tokens came from {address}; check yours and try again in {max(1, round(wait))} s.",
                retry_after=wait,
            )
        if self._max or len(failures) < _MAX_UNLIMITED:
            failures[shown] = now
        return is_new

    def succeeded(self, address: str, token: str) -> None:
        """Record that a token is right.

        Parameters
        ----------
        address
            Where it came from.
        token
            As it was sent.
        """
        self.withdraw(address, token)
        shown = self._fingerprint(token)
        self._right[shown] = None
        self._right.move_to_end(shown)
        if len(self._right) > _MAX_REMEMBERED:
            self._right.popitem(last=False)

    def failed(self, token: str) -> None:
        """Record that *token* is wrong, or was revoked."""
        self._right.pop(self._fingerprint(token), None)

    def withdraw(self, address: str, token: str) -> None:
        """Forget that a token was sent, since it could not be checked.

        Parameters
        ----------
        address
            Where it came from.
        token
            As it was sent.
        """
        self._failures.get(_network(address), {}).pop(self._fingerprint(token), None)

    def _fingerprint(self, token: str) -> bytes:
        """Return a keyed hash of *token*, so that tokens are not kept in memory."""
        return hmac.digest(self._key, token.encode(), "sha256")


def _network(address: str) -> str:
    """Return the network that counts as one address: an IPv6 host has a whole /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
