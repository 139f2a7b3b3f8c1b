"""Requests to a gateway, and the websocket to a session.

:class:`Gateway` is for programs with an event loop, :func:`fetch` for commands. Every failure becomes one of two errors
with a sentence for the user. Each request is tried once: when to try again is the caller's business.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, WebSocketError, websocket_connect

from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.gateway_client.credentials import CA_VARIABLE, Credentials
from sharedkernel.jupyter.names import (
    KERNEL_NAME,
    PROCESS_HEADER,
    SAME_PROCESS,
    SEEN,
    WEBSOCKET_PROTOCOL,
    environment_of,
    kernel_of,
)
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES

#: the status document, see `executor/control/status_builder.py`
STATUS_PATH = "/sharedkernel/api/status"
#: what is on shelves, see `gateway/http/shelf_handlers.py`
SHELVES_PATH = "/sharedkernel/api/shelves"
#: limits, the policy and what is done to sessions, see `gateway/http/handlers.py`
QUOTAS_PATH, POLICY_PATH, SESSIONS_PATH, CLASS_PATH = (
    f"/sharedkernel/api/{name}" for name in ("quotas", "policy", "sessions", "class")
)
#: where a gateway's routes are that no other server has
_OWN_ROUTES = "/sharedkernel/"
#: longest frame from a gateway, in bytes: a session's message, and where its parts are
_MAX_FRAME_BYTES = MAX_OUTPUT_BYTES + 1024**2
#: seconds until a gateway that does not even accept a connection counts as unreachable
CONNECT_TIMEOUT = 10.0
#: seconds that a gateway may take to start a session or to open its websocket
REQUEST_TIMEOUT = 60.0
#: seconds between pings; an answer may take as long, after that the connection counts as lost
PING_INTERVAL = 30.0
#: what tornado says of a request that got no answer in time, once a connection was there
_CONNECTED_TIMEOUT = "Timeout during request"
#: what a server that expects to be spoken to by TLS does with a request that is not
_HUNG_UP = (ConnectionResetError, StreamClosedError, HTTPStreamClosedError)


class GatewayRefused(Refused):
    """The gateway said no; its sentence is the message.

    Parameters
    ----------
    message, reason
        As the gateway gave them.
    status
        HTTP status.
    """

    def __init__(self, message: str, *, status: int, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be granted a little later."""
        return self.status in (408, 409, 429) or self.status >= 500


class GatewayUnreachable(SharedKernelError):
    """The gateway did not answer."""

    reason = "gateway_unreachable"


class Gateway:
    """One gateway, as one user; needs a running event loop.

    Every method raises :class:`GatewayRefused` or :class:`GatewayUnreachable`.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.url = credentials.url
        self._ca_file = credentials.ca_file
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

    async def start(self, environment: dict[str, str], *, python: str = "") -> str:
        """Request a session and return its kernel id.

        The session is a new one, or the live one of the same user and ``KERNEL_CLIENT_KEY``.

        Parameters
        ----------
        environment
            Variables whose names begin with ``KERNEL_``: the notebook, its directory and its key.
        python
            Name of a Python environment of the gateway; empty: its usual one.
        """
        body = json.dumps({"name": kernel_of(python), "env": environment})
        model = await self.fetch("POST", "/api/kernels", body=body)
        kernel_id = model.get("id")
        if not isinstance(kernel_id, str):
            raise no_gateway(self.url)
        return kernel_id

    async def end(self, kernel_id: str, *, at_once: bool) -> None:
        """End a session.

        Parameters
        ----------
        kernel_id
            What :meth:`start` returned.
        at_once
            Whether it ends now; else it can be brought back for as long as its user's quota lets it linger.
        """
        path = f"/api/kernels/{quote(kernel_id, safe='')}{'?linger=0' if at_once else ''}"
        await self.fetch("DELETE", path, seconds=CONNECT_TIMEOUT)

    async def open(
        self,
        kernel_id: str,
        session_id: str,
        on_frame: Callable[[str | bytes | None], None],
        *,
        seen: Sequence[str] | None = None,
    ) -> WebSocketClientConnection:
        """Open a websocket to the process that a session has now; another one needs another websocket.

        Parameters
        ----------
        kernel_id
            What :meth:`start` returned.
        session_id
            Names this end; the gateway keeps what it could not send for the one that comes back under the same name.
        on_frame
            Called with each frame, and with None when the connection is lost.
        seen
            Ids of the last published messages that this end has seen, where it comes back: the gateway goes on there.
            None: it comes for the first time.
        """
        path = f"/api/kernels/{quote(kernel_id, safe='')}/channels?session_id={quote(session_id, safe='')}"
        if seen is not None:
            path += f"&{SEEN}={quote(','.join(seen), safe='')}"
        # "http" becomes "ws", "https" becomes "wss"
        request = self._request("ws" + self.url.removeprefix("http") + path, timeout=REQUEST_TIMEOUT)
        request.headers[PROCESS_HEADER] = SAME_PROCESS
        try:
            websocket = await websocket_connect(
                request,
                on_message_callback=on_frame,
                ping_interval=PING_INTERVAL,
                max_message_size=_MAX_FRAME_BYTES,
                subprotocols=[WEBSOCKET_PROTOCOL],
            )
        except (HTTPClientError, WebSocketError, OSError) as error:
            raise self._explain(error) from None
        if websocket.selected_subprotocol != WEBSOCKET_PROTOCOL:
            websocket.close()
            raise GatewayRefused(
                f"the gateway at {self.url} does not speak {WEBSOCKET_PROTOCOL}; it needs a newer jupyter_server.",
                status=101,
                reason="websocket_protocol",
            )
        return websocket

    def close(self) -> None:
        """Close what is open but the websockets."""
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
            ca_certs=self._ca_file,
        )

    def _explain(self, error: Exception, path: str = "") -> GatewayRefused | GatewayUnreachable:
        """Return what tornado raised for a request of *path* as an error with a sentence."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return GatewayRefused(
                f"the certificate of the gateway at {self.url} cannot be trusted ({error.verify_message}); if an "
                "authority of your own signed it, run `sharedkernel install` with --ca FILE, or name the file in "
                f"{CA_VARIABLE}.",
                status=495,
                reason="certificate",
            )
        if isinstance(error, HTTPTimeoutError) and error.message == _CONNECTED_TIMEOUT:
            return GatewayUnreachable(
                f"the gateway at {self.url} is there but took too long to answer; try again, and if it stays so, ask "
                "its admin to look at its log and at its executors'."
            )
        if self.url.startswith("http:") and isinstance(error, _HUNG_UP):
            return GatewayUnreachable(
                f"what answers at {self.url} hung up ({error}); if the gateway encrypts, its address begins with https://."
            )
        # 599 is tornado's own: there was no answer
        if not isinstance(error, HTTPClientError) or error.code == 599:
            return GatewayUnreachable(
                f"no gateway answers at {self.url} ({error}); is it running, is the address right, is the network up?"
            )
        message, reason = _read_refusal(error.response)
        if error.code in (401, 403) and not reason:
            message = (
                f"the gateway at {self.url} does not accept this token; ask its admin for one and run "
                f"`sharedkernel install --gateway-url {self.url} --token TOKEN` with it."
            )
        elif error.code == 404 and not message and path.startswith(_OWN_ROUTES):
            route = path.partition("?")[0]
            message = (
                f"what answers at {self.url} is not a gateway for shared devices, or an older one: it has no {route}."
            )
        elif not message:
            message = f"the gateway at {self.url} answered {error.code} {error.message}."
        return GatewayRefused(message, status=error.code, reason=reason)


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


def no_gateway(url: str) -> GatewayRefused:
    """Return the error for an answer that no gateway gives."""
    return GatewayRefused(
        f"what answers at {url} is not a gateway for shared devices; check the address.", status=200, reason="address"
    )


def _read_refusal(response: HTTPResponse | None) -> tuple[str | None, str | None]:
    """Return the sentence and the slug of a gateway's JSON answer, as far as they are there."""
    try:
        answer = json.loads(response.body) if response is not None else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return None, None
    message, reason = answer.get("message"), answer.get("reason")
    return (message if isinstance(message, str) else None), (reason if isinstance(reason, str) else None)
