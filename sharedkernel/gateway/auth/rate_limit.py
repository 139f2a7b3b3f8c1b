"""A limit on wrong tokens by address, which nobody pays for but who guesses.

An address that has shown too many *different* wrong tokens gets no further one looked at for a while. What was right
before is still right: the others behind the same address (a classroom, a proxy) go on working. And one wrong token
shown again and again is one guess: a forgotten notebook with an old token locks nobody out.

What is being looked at may be wrong, so it counts as that until it is known. A classroom whose notebooks all come back
at once is no crowd of guessers, though: only some of an address's tokens are looked at at a time, and the others wait.
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

#: addresses and right tokens remembered; the longest unseen are forgotten
_MOST_REMEMBERED = 10_000
#: wrong tokens of one address that are remembered where any number is allowed
_MOST_UNLIMITED = 1000
#: seconds that a token may wait for its turn
_PATIENCE = 30.0


class TooManyAtOnce(Refused):
    """An address shows more tokens at once than can be looked at soon."""

    reason = "identity_unavailable"


class TooManyFailures(Refused):
    """An address has shown too many wrong tokens."""

    reason = "too_many_failures"


class LoginLimit:
    """Counts the wrong tokens of each address.

    Parameters
    ----------
    max_failures
        Different wrong tokens that an address may show within the window; 0: any number.
    window_seconds
        How long one of them counts.
    """

    def __init__(self, max_failures: int, window_seconds: float) -> None:
        self._max = max_failures
        self._window = window_seconds
        self._key = os.urandom(32)
        #: times at which wrong tokens were last shown, by their fingerprints, by address
        self._failures: OrderedDict[str, dict[bytes, float]] = OrderedDict()
        #: fingerprints of tokens that were right
        self._right: OrderedDict[bytes, None] = OrderedDict()
        #: with as many permits as tokens of an address are looked at at a time, by address, while any is: few enough
        #: that they alone never reach the limit
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, address: str, token: str) -> AsyncIterator[None]:
        """Wait until *token*, shown from *address*, may be attempted; keep the context open until that is over.

        Raises
        ------
        TooManyAtOnce
            When that takes too long.
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
                f"too many tokens that came from {address} are being checked; yours was not looked at, try again soon.",
                retry_after=_PATIENCE,
            ) from None
        try:
            yield
        finally:
            turns.release()

    def attempt(self, address: str, token: str, *, now: float) -> bool:
        """Return if *token*, shown from *address* at *now* (seconds), may be looked at: whether for the first time.

        It counts as wrong until :meth:`succeeded` or :meth:`withdraw` says otherwise, so that many at once are no way
        around.

        Raises
        ------
        TooManyFailures
            When the address has shown too many others.
        """
        place, shown = _network(address), self._fingerprint(token)
        if shown in self._right:
            return False
        failures = self._failures.setdefault(place, {})
        self._failures.move_to_end(place)
        if len(self._failures) > _MOST_REMEMBERED:
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
        if self._max or len(failures) < _MOST_UNLIMITED:
            failures[shown] = now
        return is_new

    def succeeded(self, address: str, token: str) -> None:
        """Take note that *token* is somebody's."""
        self.withdraw(address, token)
        shown = self._fingerprint(token)
        self._right[shown] = None
        self._right.move_to_end(shown)
        if len(self._right) > _MOST_REMEMBERED:
            self._right.popitem(last=False)

    def failed(self, token: str) -> None:
        """Take note that *token* is nobody's, or nobody's any longer."""
        self._right.pop(self._fingerprint(token), None)

    def withdraw(self, address: str, token: str) -> None:
        """Forget that *token* was shown: whether it is right could not be known."""
        self._failures.get(_network(address), {}).pop(self._fingerprint(token), None)

    def _fingerprint(self, token: str) -> bytes:
        """Return what stands for *token* here: nothing in memory tells it back."""
        return hmac.digest(self._key, token.encode(), "sha256")


def _network(address: str) -> str:
    """Return what counts as one place: an IPv6 host has a whole /64 to itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
