"""A session's part in hand-overs: it hands the device to its heir at a boundary, and inherits it where it waits.

`ipc/baton.py` says how; `executor/dispatch/succession.py` arms a hand-over and finds out what came of it. What is
decided here is only what this session's own tokens say:

- a session that takes the giver's token has released its grant, and does nothing more on the device;
- a session that takes the heir's token after a call with its number holds a grant.

All changes happen with `link.lock` held, together with what is said about them. A session that greets an executor
forgets its tokens first, so what it says of itself in the greeting stays true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sharedkernel import protocol
from sharedkernel.ipc import baton
from sharedkernel.ipc.baton import CallReceiver, Lines
from sharedkernel.ipc.fd_client import Answer, DescriptorClient
from sharedkernel.session.connection import Link

log = logging.getLogger(__name__)

#: lines to others that are kept
_MOST_LINES = 16


class Batons:
    """One session's tokens and lines.

    Parameters
    ----------
    link
        To the executor.
    channel
        To the executor, for descriptors.
    """

    def __init__(self, link: Link, channel: DescriptorClient) -> None:
        self._link = link
        self._channel = channel
        self._tokens: Any = None
        self._calls: CallReceiver | None = None
        self._lines = Lines(_MOST_LINES)
        #: counts greetings: what was asked of an executor before the last one is void
        self._greeting = 0

    # --- what takes part ----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget everything, before this session greets an executor (with `link.lock` held)."""
        self._greeting += 1
        self._lines.close()
        if self._tokens is not None:
            self._tokens.close()
        if self._calls is not None:
            self._calls.close()
        self._tokens = self._calls = None

    def on_message(self, message: protocol.Introduced | protocol.LineClosed) -> None:
        """Handle the executor's word about who takes part (on the link's thread)."""
        if isinstance(message, protocol.LineClosed):
            with self._link.lock:
                self._lines.remove(message.line)
            return
        request: protocol.FetchBaton | protocol.FetchLine
        if message.line:
            request = protocol.FetchLine(request=self._channel.number(), line=message.line)
        else:
            request = protocol.FetchBaton(request=self._channel.number())
        greeting = self._greeting
        coming = self._channel.start(request)
        coming.add_done_callback(lambda done: self._fetched(done, greeting, message.line))

    def _fetched(self, done: Future[Answer], greeting: int, line: int) -> None:
        try:
            _, descriptors = done.result()
        except Exception as error:  # everything takes the plain way then
            log.info("takes no part in a hand-over: %s", error)
            return
        with self._link.lock:
            if greeting != self._greeting or len(descriptors) != (1 if line else 2):
                return
            ends = [baton.adopt(descriptor.release()) for descriptor in descriptors]
            if line:
                self._lines.add(line, ends[0])
            else:
                self._tokens, self._calls = ends[0], CallReceiver(ends[1])

    # --- as giver -----------------------------------------------------------------------------------------------------

    def hand_on(self, used_bytes: Callable[[], int]) -> bool:
        """Hand the device to the heir, if the executor has armed that; called at a boundary, with `link.lock` held.

        Parameters
        ----------
        used_bytes
            Returns the bytes that this session has in use.

        Returns
        -------
        bool
            Whether this session holds the device no more.
        """
        if self._tokens is None:
            return False
        token = baton.peek(self._tokens)
        if token is None or used_bytes() > token.limit:
            return False
        token = baton.take(self._tokens)
        if token is None:  # the executor was quicker
            return False
        self._lines.call(token.line, token.number)
        return True

    # --- as heir ------------------------------------------------------------------------------------------------------

    def fileno(self) -> int | None:
        """Return what is readable when this session is called; None: it is not called."""
        return None if self._calls is None else self._calls.fileno()

    def wait_begins(self) -> None:
        """Forget what was called in an earlier wait (with `link.lock` held)."""
        if self._calls is not None:
            self._calls.clear()

    def inherit(self) -> bool:
        """Answer a call; return whether this session holds the device now (with `link.lock` held)."""
        if self._calls is None or self._tokens is None:
            return False
        number = self._calls.next()
        token = baton.peek(self._tokens) if number else None
        return token is not None and token.number == number and baton.take(self._tokens) == token
