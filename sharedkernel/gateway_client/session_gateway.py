"""What a relay asks of a gateway: a session, the websocket to it, and its end.

It is apart from `connection.py` because a relay is imported whenever a notebook's kernel starts. Each request is tried
once: when to try again is the caller's business.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.http_connection import Address, HttpConnection, HttpResponse, HungUp
from sharedkernel.gateway_client.refusals import (
    GatewayRefused,
    GatewayUnreachable,
    no_gateway,
    no_subprotocol,
    refused,
    too_slow,
    unreachable,
    untrusted,
)
from sharedkernel.gateway_client.websocket import WebSocket, check_handshake, handshake_headers, new_key
from sharedkernel.jupyter.names import PROCESS_HEADER, SAME_PROCESS, SEEN, WEBSOCKET_PROTOCOL, kernel_of
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES

#: longest message from a gateway, in bytes: a session's message, and where its parts are
MAX_MESSAGE_BYTES = MAX_OUTPUT_BYTES + 1024**2
#: seconds until a gateway that does not even accept a connection counts as unreachable
CONNECT_TIMEOUT = 10.0
#: seconds that a gateway may take to start a session or to open its websocket
REQUEST_TIMEOUT = 60.0
#: seconds between pings; an answer may take as long, after that the connection counts as lost
PING_INTERVAL = 30.0


class SessionGateway:
    """One gateway, as one user; needs a running event loop.

    Every method raises :class:`.GatewayRefused` or :class:`.GatewayUnreachable`.

    Parameters
    ----------
    credentials
        The gateway and the token.
    connect_timeout, request_timeout
        Seconds that it may take to accept a connection, and to answer.
    ping_interval
        Seconds between the pings of a websocket.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        ping_interval: float = PING_INTERVAL,
    ) -> None:
        self.url = credentials.url
        self._address = Address(credentials.url, credentials.ca_file)
        self._headers = {"Authorization": f"token {credentials.token}"}
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._ping_interval = ping_interval

    async def start(
        self, environment: dict[str, str], *, python: str = "", on_sent: Callable[[], None] = lambda: None
    ) -> str:
        """Request a session and return its kernel id.

        The session is a new one, or the live one of the same user and ``KERNEL_CLIENT_KEY``.

        Parameters
        ----------
        environment
            Variables whose names begin with ``KERNEL_``: the notebook, its directory and its key.
        python
            Name of a Python environment of the gateway; empty: its usual one.
        on_sent
            Called when the request is on its way.
        """
        body = json.dumps({"name": kernel_of(python), "env": environment}).encode()
        connection, response = await self._request("POST", "/api/kernels", body=body, on_sent=on_sent)
        connection.close()
        try:
            model = json.loads(response.body)
        except ValueError:
            model = None
        kernel_id = model.get("id") if isinstance(model, dict) else None
        if not isinstance(kernel_id, str):
            raise no_gateway(self.url)
        return kernel_id

    async def end(self, kernel_id: str, *, restarts: bool) -> None:
        """End a session; it can be brought back for as long as its user's quota lets it linger.

        Parameters
        ----------
        kernel_id
            What :meth:`start` returned.
        restarts
            Whether another one takes its place at once.
        """
        path = kernel_path(kernel_id, at_once=restarts)
        if restarts:
            path += "&restart=1"
        connection, _ = await self._request("DELETE", path, seconds=self._connect_timeout)
        connection.close()

    async def open(
        self,
        kernel_id: str,
        name: str,
        on_frame: Callable[[str | bytes | None], None],
        *,
        seen: Sequence[str] | None = None,
    ) -> WebSocket:
        """Open a websocket to the process that a session has now; another one needs another websocket.

        Parameters
        ----------
        kernel_id
            What :meth:`start` returned.
        name
            Names this end; the gateway keeps what it could not send for the one that comes back under the same name.
        on_frame
            Called with each message, which may be before this returns, and with None when the connection is lost.
        seen
            Ids of the last published messages that this end has seen, where it comes back: the gateway goes on there.
            None: it comes for the first time.
        """
        path = f"/api/kernels/{quote(kernel_id, safe='')}/channels?session_id={quote(name, safe='')}"
        if seen is not None:
            path += f"&{SEEN}={quote(','.join(seen), safe='')}"
        key = new_key()
        headers = {**handshake_headers(key, WEBSOCKET_PROTOCOL), PROCESS_HEADER: SAME_PROCESS}
        connection, response = await self._request("GET", path, headers=headers, accepted=(101,))
        try:
            check_handshake(response, key)
            if response.headers.get("sec-websocket-protocol") != WEBSOCKET_PROTOCOL:
                raise no_subprotocol(self.url, WEBSOCKET_PROTOCOL)
            websocket = WebSocket(
                on_frame, response.headers, max_bytes=MAX_MESSAGE_BYTES, ping_interval=self._ping_interval
            )
            connection.hand_over(websocket)
        except HungUp as error:
            connection.close()
            raise unreachable(self.url, error, hung_up=False) from None
        except GatewayRefused:
            connection.close()
            raise
        return websocket

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        accepted: Sequence[int] = range(200, 300),
        seconds: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[HttpConnection, HttpResponse]:
        """Return the answer to a request, and the connection, which is the caller's to close.

        A redirect is not followed: the token is for this gateway alone.
        """
        try:
            connection = await HttpConnection.open(self._address, seconds=self._connect_timeout)
        except OSError as error:
            raise self._explain(error) from None
        try:
            headers = self._headers | ({"Connection": "close"} if headers is None else headers)
            if body:
                headers["Content-Type"] = "application/json"
            connection.request(method, self._address, path, headers, body)
            on_sent()
            async with asyncio.timeout(self._request_timeout if seconds is None else seconds):
                response = await connection.response()
            if response.status not in accepted:
                raise refused(self.url, response.status, response.phrase, response.body, path)
        except TimeoutError:
            connection.close()
            raise too_slow(self.url) from None
        except OSError as error:
            connection.close()
            raise self._explain(error) from None
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _explain(self, error: OSError) -> GatewayRefused | GatewayUnreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted(self.url, error.verify_message)
        hung_up = isinstance(error, HungUp | ConnectionResetError)
        is_plain = error.errno in errno.errorcode and not hung_up and not isinstance(error, ssl.SSLError)
        # asyncio's text names the address, too, which the sentence has
        why: Any = os.strerror(error.errno or 0) if is_plain else error
        return unreachable(self.url, why, hung_up=hung_up)


def kernel_path(kernel_id: str, *, at_once: bool) -> str:
    """Return the path of a session that is to end, *at_once* or after it has lingered."""
    return f"/api/kernels/{quote(kernel_id, safe='')}{'?linger=0' if at_once else ''}"
