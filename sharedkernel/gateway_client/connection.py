"""A gateway's API; what relays need of it is in `session_gateway.py`.

:class:`Gateway` is for programs with an event loop, :func:`fetch` for commands.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.refusals import no_gateway
from sharedkernel.gateway_client.requests import CONNECT_TIMEOUT, REQUEST_TIMEOUT, GatewayRequests
from sharedkernel.gateway_client.session_gateway import kernel_path
from sharedkernel.jupyter.names import KERNEL_NAME, environment_of

#: the status document, see `executor/control/status_builder.py`
STATUS_PATH = "/sharedkernel/api/status"
#: what is on shelves, see `gateway/http/shelf_handlers.py`
SHELVES_PATH = "/sharedkernel/api/shelves"
#: limits, the policy and what is done to sessions, see `gateway/http/handlers.py`
QUOTAS_PATH, POLICY_PATH, SESSIONS_PATH, CLASS_PATH = (
    f"/sharedkernel/api/{name}" for name in ("quotas", "policy", "sessions", "class")
)


class Gateway(GatewayRequests):
    """One gateway's API, as one user; needs a running event loop.

    Every method raises :class:`.GatewayRefused` or :class:`.GatewayUnreachable`.
    """

    async def fetch(
        self, method: str, path: str, *, body: str | None = None, seconds: float = REQUEST_TIMEOUT
    ) -> dict[str, Any]:
        """Return the JSON object that the gateway answers to a request; empty if it answers nothing.

        Parameters
        ----------
        method, path
            The request.
        body
            JSON; None: no body.
        seconds
            To wait for the answer.
        """
        try:
            answer = json.loads(await self._answer(method, path, body, seconds) or b"{}")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise no_gateway(self.url)
        return answer

    async def check(self) -> list[str]:
        """See that this is a gateway which accepts the token; return the Python environments that it offers by name."""
        answer = await self.fetch("GET", "/api/kernelspecs", seconds=CONNECT_TIMEOUT)
        names = answer.get("kernelspecs", ())
        if KERNEL_NAME not in names:
            raise no_gateway(self.url)
        return sorted(environment for environment in map(environment_of, names) if environment)

    async def end(self, kernel_id: str, *, at_once: bool) -> None:
        """End a session.

        Parameters
        ----------
        kernel_id
            Of the session.
        at_once
            Whether it ends now; else it can be brought back for as long as its user's quota lets it linger.
        """
        await self.fetch("DELETE", kernel_path(kernel_id, at_once=at_once), seconds=CONNECT_TIMEOUT)

    async def _answer(self, method: str, path: str, body: str | None, seconds: float) -> bytes:
        """Return what the gateway answers to a request that it grants."""
        connection, response = await self.request(method, path, body=(body or "").encode(), seconds=seconds)
        connection.close()
        return response.body


def fetch(
    credentials: Credentials, path: str, *, method: str = "GET", body: str | None = None, timeout: float = 5.0
) -> dict[str, Any]:
    """Return the JSON object that a gateway answers to one request; blocks until then.

    Parameters
    ----------
    credentials
        The gateway and the token.
    path, method
        The request.
    body
        JSON; None: no body.
    timeout
        Seconds to wait for the answer.

    Raises
    ------
    GatewayRefused
        When the gateway refuses, with its own sentence, or is none.
    GatewayUnreachable
        When it does not answer.
    """
    answer = Gateway(credentials).fetch(method, path, body=body, seconds=timeout)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answer)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, answer).result()
