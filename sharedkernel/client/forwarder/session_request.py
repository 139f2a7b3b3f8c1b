"""A request for a session, in a thread of its own: a relay makes it before it imports asyncio and zmq."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import find_credentials
from sharedkernel.client.gateway.server import in_thread


class SessionRequest:
    """A request for a session, on its way.

    Parameters
    ----------
    name
        Of the kernelspec, which names the gateway and the token.
    environment, python
        See :meth:`.Gateway.start`.
    """

    def __init__(self, name: str, environment: Mapping[str, str], *, python: str) -> None:
        self._name, self._environment, self._python = name, dict(environment), python
        self._sent = threading.Event()
        self._result = in_thread(self._ask)

    def wait_until_sent(self, seconds: float) -> None:
        """Return when the request is on its way, has failed, or after *seconds*."""
        self._sent.wait(seconds)

    async def result(self) -> tuple[Gateway, str, bool]:
        """Return the gateway, the kernel id of the session, and whether this client has had it before.

        Raises
        ------
        ConfigError
            When it is not known which gateway.
        GatewayRefused
            When it refuses.
        GatewayUnreachable
            When it does not answer.
        """
        from asyncio import wrap_future

        return await wrap_future(self._result)

    def _ask(self) -> tuple[Gateway, str, bool]:
        try:
            gateway = Gateway(find_credentials(self._name))
            return gateway, *gateway.start(self._environment, python=self._python, on_sent=self._sent.set)
        finally:
            self._sent.set()
