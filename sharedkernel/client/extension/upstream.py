"""The gateway, as the user: one question at a time, and the websocket that tells what changes.

Which gateway it is, and with which token, is looked up anew for each connection: where the kernelspec's address and
token are kept somebody may just have put them. Nothing here ever reaches a page but answers and sentences.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from jupyter_server.gateway.gateway_client import GatewayClient

from sharedkernel.client.gateway.connection import STATUS_PATH, Gateway
from sharedkernel.client.gateway.credentials import Credentials, check_url, find_credentials
from sharedkernel.client.gateway.refusals import no_gateway
from sharedkernel.client.gateway.server import Server, client_context, to_thread
from sharedkernel.jupyter.names import machine_digest
from sharedkernel.status.document import StatusDocument, read_status


class Upstream(Gateway):
    """A gateway's own API for a program with an event loop; its coroutines raise what :class:`.Gateway` does."""

    async def user(self) -> dict[str, Any]:
        """Return who the token's user is: ``name``, and whether they are ``admin``."""
        identity = (await self.ask("GET", "/api/me")).get("identity")
        if not isinstance(identity, dict):
            raise no_gateway(self.url)
        return {"name": str(identity.get("username", "")), "admin": identity.get("admin") is True}

    async def host(self) -> dict[str, Any] | None:
        """Return the ``name`` of the gateway's machine, whether ``files`` and ``terminals`` are on; None: this one."""
        told = await self.ask("GET", "/sharedkernel/api/host")
        if told.get("machine") == machine_digest():
            return None
        return {"name": str(told.get("name", "")), **{kind: told.get(kind) is True for kind in ("files", "terminals")}}

    async def status(self) -> StatusDocument:
        """Return the status document."""
        return read_status(await self.ask("GET", STATUS_PATH), f"the gateway at {self.url}")

    async def act_on(self, session: str, action: str) -> None:
        """Do something to a session.

        Parameters
        ----------
        session
            Its kernel id; its own id, if it lingers.
        action
            One of :meth:`.Gateway.act`, ``"interrupt"``, ``"shut down"`` (it can be brought back for a while) or
            ``"end"`` (it cannot).
        """
        if action == "interrupt":
            await self.ask("POST", f"/api/kernels/{quote(session, safe='')}/interrupt", "{}")
        elif action in ("shut down", "end"):
            await to_thread(self.end, session, at_once=action == "end")
        else:
            await to_thread(self.act, session, action)

    async def ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        """Return what :meth:`.Gateway.fetch` does."""
        return await to_thread(self.fetch, method, path, body)


def _stock_gateway(client: GatewayClient) -> Upstream:
    """Return the gateway of ``jupyter lab --gateway-url``, reached as Jupyter's own client reaches it.

    That one has the address, the token and certificates, and uses no proxy.
    """
    credentials = Credentials(url=check_url(str(client.url)), token=str(client.auth_token or ""))
    options: dict[str, Any] = client.load_connection_args(headers={})
    headers = dict(options["headers"])
    if (name := options.get("auth_username")) is not None:
        pair = f"{name}:{options.get('auth_password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def make_context() -> ssl.SSLContext:
        context = client_context(options.get("ca_certs"))
        if not options["validate_cert"]:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate := options.get("client_cert"):
            context.load_cert_chain(certificate, options.get("client_key"))
        return context

    return Upstream(credentials, Server(credentials.url, make_context, uses_proxy=False), headers)


def find_upstream(kernel_name: str) -> Upstream:
    """Return this server's gateway: the one it was started with, else the kernelspec's.

    Raises
    ------
    ConfigError
        When there is none, or what is said of it cannot be used.
    """
    client = GatewayClient.instance()
    return _stock_gateway(client) if client.gateway_enabled else Upstream(find_credentials(kernel_name))


#: how to get the gateway at this moment
FindUpstream = Callable[[], Upstream]
