"""A rate limit on wrong tokens by address, which never keeps a right token out.

Each token is checked, and only wrong ones count. Once an address has sent too many *different* wrong ones, further ones
are answered with an error that says so. Others behind the same address (a classroom, a proxy) do not notice.
A wrong token that is sent repeatedly counts once. The limit protects what checks tokens (JupyterHub), the audit log and
the memory of the gateway; tokens themselves are too long to be guessed.

Only some of an address's new tokens are checked at a time, and one by one when it has sent too many wrong ones; the
others wait.
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
        #: by address and their number: permits to check tokens
        self._turns: WeakValueDictionary[tuple[str, int], asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, address: str, token: str, *, now: float) -> AsyncIterator[None]:
        """Wait until a token may be checked; keep the context open during the check.

        Parameters
        ----------
        address
            IP address of the client.
        token
            The token that it sent.
        now
            Seconds on a monotonic clock.

        Raises
        ------
        Refused
            When the wait takes too long.
        """
        if not self._max or self._fingerprint(token) in self._right:
            yield
            return
        place = _network(address)
        num_turns = 1 if len(self._failures_of(place, now)) >= self._max else max(1, self._max // 3)
        turns = self._turns.setdefault((place, num_turns), asyncio.Semaphore(num_turns))
        try:
            async with asyncio.timeout(_PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise Refused(
                f"too many tokens that came from {address} are being checked; yours was not checked, try again soon.",
                reason="identity_unavailable",
                retry_after=_PATIENCE,
            ) from None
        try:
            yield
        finally:
            turns.release()

    def succeeded(self, token: str) -> None:
        """Record that *token* is right; no later one waits for a turn with it."""
        shown = self._fingerprint(token)
        self._right[shown] = None
        self._right.move_to_end(shown)
        if len(self._right) > _MAX_REMEMBERED:
            self._right.popitem(last=False)

    def failed(self, address: str, token: str, *, now: float) -> bool:
        """Count a wrong or revoked token.

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
        Refused
            When the address has sent too many others.
        """
        place, shown = _network(address), self._fingerprint(token)
        self._right.pop(shown, None)
        failures = self._failures_of(place, now)
        is_new = shown not in failures
        if self._max and is_new and len(failures) >= self._max:
            wait = self._window - (now - min(failures.values()))
            sentence = f"too many wrong tokens came from {address}, and this is another; check yours."
            raise Refused(sentence, reason="too_many_failures", retry_after=wait)
        if self._max or len(failures) < _MAX_UNLIMITED:
            failures[shown] = now
        self._failures[place] = failures
        self._failures.move_to_end(place)
        if len(self._failures) > _MAX_REMEMBERED:
            self._failures.popitem(last=False)
        return is_new

    def _failures_of(self, place: str, now: float) -> dict[bytes, float]:
        """Return the wrong tokens of an address that still count, with the time of each."""
        failures = self._failures.get(place, {})
        for fingerprint in [known for known, when in failures.items() if now - when >= self._window]:
            del failures[fingerprint]
        return failures

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
