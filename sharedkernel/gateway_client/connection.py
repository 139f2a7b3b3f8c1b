"""Requests to a gateway's API, by tornado; `session_gateway.py` is what relays need, and is imported in less time.

:class:`Gateway` is for programs with an event loop, :func:`fetch` for commands. Every failure becomes one of two errors
with a sentence for the user. Each request is tried once: when to try again is the caller's business.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.refusals import (
    GatewayRefused,
    GatewayUnreachable,
    no_gateway,
    refused,
    too_slow,
    unreachable,
    untrusted,
)
from sharedkernel.gateway_client.session_gateway import CONNECT_TIMEOUT, REQUEST_TIMEOUT, kernel_path
from sharedkernel.gateway_client.trust import client_context
from sharedkernel.jupyter.names import KERNEL_NAME, environment_of

#: the status document, see `executor/control/status_builder.py`
STATUS_PATH = "/sharedkernel/api/status"
#: what is on shelves, see `gateway/http/shelf_handlers.py`
SHELVES_PATH = "/sharedkernel/api/shelves"
#: limits, the policy and what is done to sessions, see `gateway/http/handlers.py`
QUOTAS_PATH, POLICY_PATH, SESSIONS_PATH, CLASS_PATH = (
    f"/sharedkernel/api/{name}" for name in ("quotas", "policy", "sessions", "class")
)
#: what tornado says of a request that got no answer in time, once a connection was there
_CONNECTED_TIMEOUT = "Timeout during request"
#: what a server that expects to be spoken to by TLS does with a request that is not
_HUNG_UP = (ConnectionResetError, StreamClosedError, HTTPStreamClosedError)


class Gateway:
    """One gateway, as one user; needs a running event loop.

    Every method raises :class:`GatewayRefused` or :class:`GatewayUnreachable`.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials, self.url = credentials, credentials.url
        self._context = client_context(credentials.ca_file) if self.url.startswith("https:") else None
        self._headers = {"Authorization": f"token {credentials.token}"}
        # A client of its own: the shared one may be configured to be something else.
        self._client = SimpleAsyncHTTPClient(force_instance=True)

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
        request = self._request(self.url + path, timeout=seconds, method=method, body=body)
        try:
            response = await self._client.fetch(request)
        except (HTTPClientError, OSError) as error:
            raise self._explain(error, path) from None
        try:
            answer = json.loads(response.body or b"{}")
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

    def close(self) -> None:
        """Close what is open."""
        self._client.close()

    def _request(self, url: str, *, timeout: float, method: str = "GET", body: str | None = None) -> HTTPRequest:
        # A redirect is not followed: the token is for this gateway alone.
        return HTTPRequest(
            url,
            method=method,
            headers=self._headers | ({} if body is None else {"Content-Type": "application/json"}),
            body=body,
            connect_timeout=CONNECT_TIMEOUT,
            request_timeout=timeout,
            follow_redirects=False,
            ssl_options=self._context,
        )

    def _explain(self, error: Exception, path: str = "") -> GatewayRefused | GatewayUnreachable:
        """Return what tornado raised for a request of *path* as an error with a sentence."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted(self.url, error.verify_message)
        if isinstance(error, HTTPTimeoutError) and error.message == _CONNECTED_TIMEOUT:
            return too_slow(self.url)
        # 599 is tornado's own: there was no answer
        if not isinstance(error, HTTPClientError) or error.code == 599:
            return unreachable(self.url, error, hung_up=isinstance(error, _HUNG_UP))
        body = b"" if error.response is None else error.response.body
        return refused(self.url, error.code, error.message or "", body, path)


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

    async def once() -> dict[str, Any]:
        gateway = Gateway(credentials)
        try:
            return await gateway.fetch(method, path, body=body, seconds=timeout)
        finally:
            gateway.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(once())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, once()).result()
