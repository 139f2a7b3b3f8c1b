"""Requests to a gateway as one user, and websockets, over connections of their own.

Relays, commands and the server extension use it. Each request is tried once: when to try again is the caller's
business.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.http_connection import Address, HttpConnection, HttpResponse, HungUp
from sharedkernel.gateway_client.refusals import (
    GatewayRefused,
    GatewayUnreachable,
    no_subprotocol,
    refused,
    too_slow,
    unreachable,
    untrusted,
)
from sharedkernel.gateway_client.websocket import WebSocket, check_handshake, handshake_headers, new_key
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES

#: longest message from a gateway, in bytes: a session's message, and where its parts are
MAX_MESSAGE_BYTES = MAX_OUTPUT_BYTES + 1024**2
#: seconds until a gateway that does not even accept a connection counts as unreachable
CONNECT_TIMEOUT = 10.0
#: seconds that a gateway may take to start a session or to open its websocket
REQUEST_TIMEOUT = 60.0
#: seconds between pings; an answer may take as long, after that the connection counts as lost
PING_INTERVAL = 30.0


class GatewayRequests:
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
        self.credentials, self.url = credentials, credentials.url
        self._address = Address(credentials.url, credentials.ca_file)
        self._headers = {"Authorization": f"token {credentials.token}"}
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._ping_interval = ping_interval

    async def open_websocket(
        self,
        path: str,
        on_frame: Callable[[str | bytes | None], None],
        *,
        subprotocol: str = "",
        headers: Mapping[str, str] = {},
    ) -> WebSocket:
        """Open a websocket.

        Parameters
        ----------
        path
            Where it is.
        on_frame
            Called with each message, which may be before this returns, and with None when the connection is lost.
        subprotocol
            How messages are framed; empty: each is one frame.
        headers
            More headers of the request.
        """
        key = new_key()
        asked = {**handshake_headers(key, subprotocol), **headers}
        connection, response = await self.request("GET", path, headers=asked, accepted=(101,))
        try:
            check_handshake(response, key)
            if response.headers.get("sec-websocket-protocol", "") != subprotocol:
                raise no_subprotocol(self.url, subprotocol)
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

    async def request(
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

        Parameters
        ----------
        method, path
            The request.
        body
            JSON; empty: no body.
        headers
            Beside the token; None: those of a request that is its connection's last.
        accepted
            The statuses of answers that are no refusals.
        seconds
            To wait for the answer; None: as the constructor was told.
        on_sent
            Called when the request is on its way.
        """
        seconds = self._request_timeout if seconds is None else seconds
        try:
            connection = await HttpConnection.open(self._address, seconds=min(seconds, self._connect_timeout))
        except OSError as error:
            raise self._explain(error) from None
        try:
            headers = self._headers | ({"Connection": "close"} if headers is None else headers)
            if body:
                headers["Content-Type"] = "application/json"
            connection.request(method, self._address, path, headers, body)
            on_sent()
            async with asyncio.timeout(seconds):
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
