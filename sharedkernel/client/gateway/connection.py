"""One gateway's API as one user: relays, commands and the server extension all use :class:`Gateway`.

Each request is tried once: when to try again is the caller's business. A redirect is not followed: the token is for
this gateway alone. A relay makes its :class:`SessionRequest` in a thread, before it imports asyncio and zmq.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sharedkernel.client.gateway import refusals
from sharedkernel.client.gateway.credentials import Credentials, find_credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import USUAL_TIMEOUTS, Server, Timeouts, client_context, cut_after, in_thread
from sharedkernel.jupyter.names import (
    EXISTING,
    KERNEL_NAME,
    PROCESS_HEADER,
    SAME_PROCESS,
    SEEN,
    SUCCESSOR,
    WEBSOCKET_PROTOCOL,
    environment_of,
    kernel_of,
)

if TYPE_CHECKING:
    from sharedkernel.client.gateway.websocket import WebSocket

#: the status document, see `executor/control/status_builder.py`
STATUS_PATH = "/sharedkernel/api/status"
#: what is on shelves, see `gateway/http/shelf_handlers.py`
SHELVES_PATH = "/sharedkernel/api/shelves"
#: limits, the policy and what is done to sessions, see `gateway/http/handlers.py`
QUOTAS_PATH, POLICY_PATH, SESSIONS_PATH, CLASS_PATH = (
    f"/sharedkernel/api/{name}" for name in ("quotas", "policy", "sessions", "class")
)
#: most bytes of an answer's body: a status document, a kernel's model, a refusal
MAX_BODY_BYTES = 16 * 1024**2


class Gateway:
    """One gateway's API, as one user; every method raises :class:`.GatewayRefused` or :class:`.GatewayUnreachable`.

    Those that are no coroutines block until the gateway has answered.

    Parameters
    ----------
    credentials
        The gateway and the token.
    server
        Where it is; None: as its address says.
    headers
        Of each request; None: the token's.
    timeouts
        For each connection to it.
    """

    def __init__(
        self,
        credentials: Credentials,
        server: Server | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts = USUAL_TIMEOUTS,
    ) -> None:
        self.credentials, self.url = credentials, credentials.url
        self._server = server or Server(credentials.url, lambda: client_context(credentials.ca_file))
        self._headers = headers or {"Authorization": f"token {credentials.token}"}
        self._timeouts = timeouts

    # --- sessions -----------------------------------

    def start(
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
        body = json.dumps({"name": kernel_of(python), "env": environment})
        model = self.fetch("POST", "/api/kernels", body, on_sent=on_sent)
        kernel_id = model.get("id")
        if not isinstance(kernel_id, str):
            raise refusals.no_gateway(self.url)
        return kernel_id, model.get(EXISTING) is True

    def end(self, kernel_id: str, *, at_once: bool = False, restarts: bool = False) -> None:
        """End a session.

        Parameters
        ----------
        kernel_id
            Of the session.
        at_once
            Whether it ends now; else it can be brought back for as long as its user's quota lets it linger.
        restarts
            Whether another one takes its place at once.
        """
        query = "?linger=0&restart=1" if restarts else "?linger=0" if at_once else ""
        self.fetch("DELETE", f"/api/kernels/{quote(kernel_id, safe='')}{query}")

    def act(self, session: str, action: str) -> None:
        """Do something to a session.

        Parameters
        ----------
        session
            Its kernel id, or its own id if it lingers.
        action
            ``"offload"``: its memory leaves the device until its next cell; ``"attach"``: the earlier session of its
            notebook comes back; ``"ask-for-room"``: those with idle memory are offloaded.
        """
        self.fetch("POST", f"{SESSIONS_PATH}/{quote(session, safe='')}/{action}", "{}")

    async def open(
        self, kernel_id: str, name: str, *, seen: Sequence[str] | None = None, successor: str = ""
    ) -> WebSocket:
        """Open a websocket to the process that a session has now; another one needs another websocket.

        Parameters
        ----------
        kernel_id
            What :meth:`start` returned.
        name
            Names this end; the gateway keeps what it could not send for the one that comes back under the same name.
        seen
            Ids of the last published messages that this end has seen, where it comes back: the gateway goes on there.
            None: it comes for the first time.
        successor
            Names this end alone, where it takes the place of another one whose name it has: what that one was sent, its
            client may have.
        """
        path = f"/api/kernels/{quote(kernel_id, safe='')}/channels?session_id={quote(name, safe='')}"
        if seen is not None:
            path += f"&{SEEN}={quote(','.join(seen), safe='')}"
        if successor:
            path += f"&{SUCCESSOR}={quote(successor, safe='')}"
        return await self.open_websocket(path, subprotocol=WEBSOCKET_PROTOCOL, headers={PROCESS_HEADER: SAME_PROCESS})

    # --- everything else -----------------------------------

    def check(self) -> list[str]:
        """Check that this is a gateway and accepts the token; return the Python environments that it offers by name."""
        names = self.fetch("GET", "/api/kernelspecs", seconds=self._timeouts.connect).get("kernelspecs", ())
        if KERNEL_NAME not in names:
            raise refusals.no_gateway(self.url)
        return sorted(environment for environment in map(environment_of, names) if environment)

    def fetch(
        self,
        method: str,
        path: str,
        body: str | None = None,
        *,
        seconds: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Return the JSON object that the gateway answers to a request; empty if it answers nothing.

        Parameters
        ----------
        method, path
            The request.
        body
            JSON; None: no body.
        seconds
            To wait for the answer; None: as the constructor was told.
        on_sent
            Called when the request is on its way.
        """
        content = (body or "").encode()
        headers = {"Content-Length": str(len(content))} | ({} if body is None else {"Content-Type": "application/json"})
        seconds = seconds or self._timeouts.answer
        connection = self.connect(method, path, headers, content, seconds=seconds)
        try:
            with cut_after(seconds, connection.sock):
                on_sent()
                with connection.getresponse() as response:
                    received = response.read(MAX_BODY_BYTES + 1)
                if len(received) > MAX_BODY_BYTES:
                    raise HTTPException
                if response.length:
                    raise IncompleteRead(received)
        except (OSError, HTTPException) as error:
            raise self.explain(error) from None
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise refusals.refused(self.url, response.status, response.reason, received, path)
        try:
            answer = json.loads(received or b"{}")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise refusals.no_gateway(self.url)
        return answer

    def connect(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, seconds: float
    ) -> HTTPConnection:
        """Return a connection on which a request was sent; more of its body, and the answer, are the caller's to pass.

        Parameters
        ----------
        method, path, headers, body
            The request; the token comes by itself.
        seconds
            For which the gateway may be silent.
        """
        connection = HTTPConnection(self._server.host, self._server.port)
        try:
            connection.sock = self._server.connect_encrypted(min(seconds, self._timeouts.connect))
            connection.sock.settimeout(seconds)
            connection.putrequest(method, self._server.path + path, skip_host=True, skip_accept_encoding=True)
            own = {"Host": self._server.authority, "Connection": "close"}
            for name, value in {**own, **self._headers, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
        except OSError as error:
            connection.close()
            raise self.explain(error) from None
        return connection

    async def open_websocket(self, path: str, *, subprotocol: str = "", headers: Mapping[str, str] = {}) -> WebSocket:
        """Open a websocket.

        Parameters
        ----------
        path
            Where it is.
        subprotocol
            How messages are framed; empty: each is one frame.
        headers
            More headers of the request.
        """
        # Not at the top: commands need no websockets, and a relay requests its session before it imports them.
        from sharedkernel.client.gateway.websocket import open_websocket

        try:
            return await open_websocket(
                self._server, path, {**self._headers, **headers}, subprotocol, timeouts=self._timeouts
            )
        except (OSError, HTTPException) as error:
            raise self.explain(error) from None

    def explain(self, error: Exception) -> GatewayRefused | GatewayUnreachable:
        """Return the error with a sentence for one of the system's, or of `http.client`."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return refusals.untrusted(self.url, error.verify_message)
        if isinstance(error, TimeoutError):
            return refusals.too_slow(self.url)
        if isinstance(error, HTTPException):
            ended = isinstance(error, RemoteDisconnected | IncompleteRead)
            why = "the connection was closed" if ended else "its answer is no HTTP, or too long"
            return refusals.unreachable(self.url, why, hung_up=True)
        assert isinstance(error, OSError)
        return refusals.unreachable(self.url, error.strerror or error, hung_up=isinstance(error, ConnectionResetError))


def fetch(
    credentials: Credentials, path: str, *, method: str = "GET", body: str | None = None, timeout: float = 5.0
) -> dict[str, Any]:
    """Return the JSON object that a gateway answers to one request; as :meth:`Gateway.fetch`."""
    return Gateway(credentials).fetch(method, path, body, seconds=timeout)


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
        #: set when it is on its way, or has failed
        self.sent = threading.Event()
        #: the gateway, the kernel id of the session, and whether this client has had it before; or a
        #: :class:`.ConfigError` if it is not known which gateway, or a method's of :class:`Gateway`
        self.result = in_thread(self._ask)

    def _ask(self) -> tuple[Gateway, str, bool]:
        try:
            gateway = Gateway(find_credentials(self._name))
            return gateway, *gateway.start(self._environment, python=self._python, on_sent=self.sent.set)
        finally:
            self.sent.set()
