"""The gateway, as the user: one question at a time, and the websocket that tells what changes.

Which gateway it is, and with which token, is looked up anew for each connection: where the kernelspec's address and
token are kept somebody may just have put them. Nothing here ever reaches a page but answers and sentences.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

from jupyter_server.gateway.gateway_client import GatewayClient
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient
from tornado.websocket import WebSocketError, websocket_connect

from sharedkernel.gateway_client.connection import STATUS_PATH, Gateway
from sharedkernel.gateway_client.credentials import Credentials, check_url, find_credentials
from sharedkernel.gateway_client.refusals import (
    GatewayRefused,
    GatewayUnreachable,
    no_gateway,
    refused,
    too_slow,
    unreachable,
    untrusted,
)
from sharedkernel.gateway_client.requests import CONNECT_TIMEOUT, PING_INTERVAL
from sharedkernel.status.document import StatusDocument, read_status

_EVENTS_PATH = "/sharedkernel/api/events"
#: what tornado says of a request that got no answer in time, once a connection was there
_CONNECTED_TIMEOUT = "Timeout during request"
#: what a server that expects to be spoken to by TLS does with a request that is not
_HUNG_UP = (ConnectionResetError, StreamClosedError, HTTPStreamClosedError)


class Closable(Protocol):
    """An open websocket."""

    def close(self) -> None:
        """End it."""


class Upstream(Gateway):
    """A gateway's own API; every method raises what :class:`~sharedkernel.gateway_client.connection.Gateway` does."""

    async def user(self) -> dict[str, Any]:
        """Return who the token's user is: ``name``, and whether they are ``admin``."""
        identity = (await self.fetch("GET", "/api/me")).get("identity")
        if not isinstance(identity, dict):
            raise no_gateway(self.url)
        return {"name": str(identity.get("username", "")), "admin": identity.get("admin") is True}

    async def status(self) -> StatusDocument:
        """Return the status document."""
        return read_status(await self.fetch("GET", STATUS_PATH), f"the gateway at {self.url}")

    async def settings(self, name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what is set at the gateway, after changing it if there are changes.

        Parameters
        ----------
        name
            ``"quotas"`` or ``"policy"``.
        changes
            As the gateway's API takes them; None: no changes.
        """
        path = f"/sharedkernel/api/{name}"
        if changes is None:
            return await self.fetch("GET", path)
        return await self.fetch("PUT", path, body=json.dumps(changes))

    async def timeline(self, query: str) -> dict[str, Any]:
        """Return what the gateway answers of its timeline to *query*, a URL's."""
        return await self.fetch("GET", f"/sharedkernel/api/timeline?{query}")

    async def act(self, session: str, action: str) -> None:
        """Do something to a session.

        Parameters
        ----------
        session
            Its kernel id; its own id, if it lingers.
        action
            ``"offload"``, ``"attach"`` (bring back the earlier session of its notebook), ``"ask-for-room"`` (of those
            with idle memory), ``"interrupt"``, ``"shut down"`` (it can be brought back for a while) or ``"end"`` (it
            cannot).
        """
        name = quote(session, safe="")
        if action in ("offload", "attach", "ask-for-room"):
            await self.fetch("POST", f"/sharedkernel/api/sessions/{name}/{action}", body="{}")
        elif action == "interrupt":
            await self.fetch("POST", f"/api/kernels/{name}/interrupt", body="{}")
        else:
            await self.end(session, at_once=action == "end")

    async def events(self, on_frame: Callable[[str | bytes | None], None]) -> Closable:
        """Open the websocket on which the gateway sends the status document whenever it has changed.

        Parameters
        ----------
        on_frame
            Called with each message, and with None when the connection is lost.
        """
        return await self.open_websocket(_EVENTS_PATH, on_frame)


class StockUpstream(Upstream):
    """The gateway of ``jupyter lab --gateway-url``, reached as Jupyter's own client reaches it.

    Parameters
    ----------
    client
        Jupyter's client, which has the address, the token and certificates, and uses no proxy.
    """

    def __init__(self, client: GatewayClient) -> None:
        super().__init__(Credentials(url=check_url(str(client.url)), token=str(client.auth_token or "")))
        self._stock_client = client

    async def events(self, on_frame: Callable[[str | bytes | None], None]) -> Closable:
        """Open the websocket."""
        request = self._tornado_request("ws" + self.url.removeprefix("http") + _EVENTS_PATH, CONNECT_TIMEOUT)
        try:
            return await websocket_connect(request, on_message_callback=on_frame, ping_interval=PING_INTERVAL)
        except (HTTPClientError, WebSocketError, OSError) as error:
            raise self._explain_tornado(error) from None

    async def _answer(self, method: str, path: str, body: str | None, seconds: float) -> bytes:
        request = self._tornado_request(self.url + path, seconds, method=method, body=body)
        # A client of its own: the shared one may be configured to be something else.
        client = SimpleAsyncHTTPClient(force_instance=True)
        try:
            return (await client.fetch(request)).body
        except (HTTPClientError, OSError) as error:
            raise self._explain_tornado(error, path) from None
        finally:
            client.close()

    def _tornado_request(self, url: str, seconds: float, **request: Any) -> HTTPRequest:
        headers = {"Content-Type": "application/json"} if request.get("body") else {}
        stock = self._stock_client.load_connection_args(headers=headers)
        # A redirect is not followed: the token is for this gateway alone.
        ours = {"connect_timeout": CONNECT_TIMEOUT, "request_timeout": seconds, "follow_redirects": False}
        return HTTPRequest(url, **{**stock, **ours, **request})

    def _explain_tornado(self, error: Exception, path: str = "") -> GatewayRefused | GatewayUnreachable:
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


def find_upstream(kernel_name: str) -> Upstream:
    """Return this server's gateway: the one it was started with, else the kernelspec's.

    Raises
    ------
    ConfigError
        When there is none, or what is said of it cannot be used.
    """
    client = GatewayClient.instance()
    return StockUpstream(client) if client.gateway_enabled else Upstream(find_credentials(kernel_name))


#: how to get the gateway at this moment
FindUpstream = Callable[[], Upstream]
