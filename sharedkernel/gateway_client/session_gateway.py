"""What a relay asks of a gateway: a session, the websocket to it, and its end.

It is apart from `connection.py` because a relay is imported whenever a notebook's kernel starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from urllib.parse import quote

from sharedkernel.gateway_client.refusals import no_gateway
from sharedkernel.gateway_client.requests import GatewayRequests
from sharedkernel.gateway_client.websocket import WebSocket
from sharedkernel.jupyter.names import EXISTING, PROCESS_HEADER, SAME_PROCESS, SEEN, WEBSOCKET_PROTOCOL, kernel_of


class SessionGateway(GatewayRequests):
    """One gateway, as one user who has sessions there; needs a running event loop.

    Every method raises :class:`.GatewayRefused` or :class:`.GatewayUnreachable`.
    """

    async def start(
        self, environment: dict[str, str], *, python: str = "", on_sent: Callable[[], None] = lambda: None
    ) -> tuple[str, bool]:
        """Request a session; return its kernel id, and whether this client has had it before.

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
        connection, response = await self.request("POST", "/api/kernels", body=body, on_sent=on_sent)
        connection.close()
        try:
            model = json.loads(response.body)
        except ValueError:
            model = None
        kernel_id = model.get("id") if isinstance(model, dict) else None
        if not isinstance(kernel_id, str):
            raise no_gateway(self.url)
        return kernel_id, model.get(EXISTING) is True

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
        connection, _ = await self.request("DELETE", path, seconds=self._connect_timeout)
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
        return await self.open_websocket(
            path, on_frame, subprotocol=WEBSOCKET_PROTOCOL, headers={PROCESS_HEADER: SAME_PROCESS}
        )


def kernel_path(kernel_id: str, *, at_once: bool) -> str:
    """Return the path of a session that is to end, *at_once* or after it has lingered."""
    return f"/api/kernels/{quote(kernel_id, safe='')}{'?linger=0' if at_once else ''}"
