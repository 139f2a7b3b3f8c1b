"""The gateway, as the user: one question at a time, and the websocket that tells what changes.

Which gateway it is, and with which token, is looked up anew for each connection: where the kernelspec's address and
token are kept somebody may just have put them. Nothing here ever reaches a page but answers and sentences.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from jupyter_server.gateway.gateway_client import GatewayClient
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketError, websocket_connect

from sharedkernel.gateway_client.connection import STATUS_PATH, Gateway
from sharedkernel.gateway_client.credentials import Credentials, check_url, find_credentials
from sharedkernel.gateway_client.refusals import no_gateway
from sharedkernel.gateway_client.session_gateway import CONNECT_TIMEOUT, PING_INTERVAL
from sharedkernel.status.document import StatusDocument, read_status

_EVENTS_PATH = "/sharedkernel/api/events"


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

    async def events(self) -> WebSocketClientConnection:
        """Open the websocket on which the gateway sends the status document whenever it has changed."""
        request = self._request("ws" + self.url.removeprefix("http") + _EVENTS_PATH, timeout=CONNECT_TIMEOUT)
        try:
            return await websocket_connect(request, ping_interval=PING_INTERVAL)
        except (HTTPClientError, WebSocketError, OSError) as error:
            raise self._explain(error) from None


class StockUpstream(Upstream):
    """The gateway of ``jupyter lab --gateway-url``, reached as Jupyter's own client reaches it.

    Parameters
    ----------
    client
        Jupyter's client, which has the address, the token, certificates and proxies.
    """

    def __init__(self, client: GatewayClient) -> None:
        super().__init__(Credentials(url=check_url(str(client.url)), token=str(client.auth_token or "")))
        self._stock_client = client

    def _request(self, url: str, *, timeout: float, method: str = "GET", body: str | None = None) -> HTTPRequest:
        plain = super()._request(url, timeout=timeout, method=method, body=body)
        headers = {name: value for name, value in dict(plain.headers).items() if name != "Authorization"}
        ours = {"connect_timeout": plain.connect_timeout, "request_timeout": timeout, "follow_redirects": False}
        stock = self._stock_client.load_connection_args(headers=headers)
        return HTTPRequest(url, **{**stock, **ours, "method": method, "body": body})


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
