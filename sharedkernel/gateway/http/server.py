"""The HTTP server: a guard of its requests, timeouts for every client, patience while files cannot be opened.

The guard hides tokens from logs, and refuses methods, hosts and bodies, before any handler runs. A token in the address
is moved to the headers, since the gateway, Jupyter and tornado log addresses. A request for another host is refused, so
that a web page cannot reach the gateway under a name of its own (DNS rebinding).

A request's body is kept only if its token is right and its user's budget has room for it: without a token, the gateway
keeps nothing but headers, and the small texts in which a token or a code is sent to sign in. Other bodies are dropped
as they come, and the request is answered without it.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.ioloop import IOLoop
from tornado.netutil import add_accept_handler
from tornado.routing import Router
from tornado.web import Application, ErrorHandler, RequestHandler

from sharedkernel.client.gateway.server import is_loopback
from sharedkernel.errors import ConfigError, Refused
from sharedkernel.gateway.auth.identity import TokenOnlyIdentity
from sharedkernel.gateway.channels.user_bytes import TooManyBytes, UserBytes
from sharedkernel.gateway.errors import finish_refused
from sharedkernel.gateway.tls import Certificate

log = logging.getLogger(__name__)

_TOKEN = "token"
#: attribute of a request whose token came in its address
TOKEN_IN_ADDRESS = "_sharedkernel_token_in_address"
#: stands for all methods that no handler has: tornado answers it with 405, and each would be a label of the metrics
_UNKNOWN_METHOD = "OTHER"
#: where the form with a token and the code of an invitation are sent, and the most bytes that they have
SIGN_IN_PATH, INVITATION_PATH, _MOST_SIGN_IN_BYTES = "sharedkernel/page/sign-in", "sharedkernel/page/invitation", 4096
#: largest headers of a request
_MAX_HEADER_BYTES = 64 * 1024
#: what the system answers where a connection cannot be accepted now, and seconds until the next attempt
_NO_ROOM, _PAUSE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 0.5


class RequestGuard(Router):
    """Checks requests for an application.

    Parameters
    ----------
    application
        Handles the requests that pass.
    hosts
        Host names by which clients may address this gateway, beside this machine's own; None: any.
    remote
        Whether it listens beyond this machine, so that clients may use the machine's name or an IP address.
    identity
        Says whose a request is.
    user_bytes
        Counts the bodies of each user's requests.
    max_body_bytes
        Longest body; counted where a request does not say how long its own is.
    """

    def __init__(
        self,
        application: Application,
        *,
        hosts: Collection[str] | None,
        remote: bool,
        identity: TokenOnlyIdentity,
        user_bytes: UserBytes,
        max_body_bytes: int,
    ) -> None:
        self._application = application
        self._identity = identity
        #: counts bodies that are read
        self.user_bytes = user_bytes
        self._max_body_bytes = max_body_bytes
        self._remote = remote
        self._hosts = None if hosts is None else {host.lower() for host in (*hosts, "localhost")}
        if self._hosts is not None and remote:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        """Return the handler of *request*; *kwargs* are for tornado."""
        if request.method not in RequestHandler.SUPPORTED_METHODS:
            request.method = _UNKNOWN_METHOD
        hide_token(request)
        if not self._is_own_host(request.host_name):
            wrong_host = Refused(
                f"this gateway is not {request.host_name!r}; if it should be, its admin adds that to "
                "c.ServerApp.local_hostnames; if a proxy calls it so, the proxy has to pass the header Host on as it "
                "is.",
                reason="not_allowed",
            )
            return self.handler_of(request, wrong_host)
        found = self.handler_of(request, None)
        # What takes a body as it comes keeps none (`user_server.py`).
        has_body = request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers
        if not has_body or getattr(found, "stream_request_body", False):
            return found
        return _GuardedBody(self, request)

    async def admit_body(self, request: HTTPServerRequest, holder: object) -> bool:
        """Count the body of *request* for *holder*; False if nobody's token came with it, or a wrong one.

        Raises
        ------
        TooManyBytes
            When the gateway holds too much of its user already.
        """
        if request.path.endswith(("/" + SIGN_IN_PATH, f"/{INVITATION_PATH}/look", f"/{INVITATION_PATH}/accept")):
            length = request.headers.get("Content-Length", "")
            return length.isdecimal() and int(length) <= _MOST_SIGN_IN_BYTES
        try:
            user = await self._identity.find_user(request)
        except Refused:
            return False  # the handler answers why
        if user is None:
            return False
        length = request.headers.get("Content-Length", "")
        num_bytes = int(length) if length.isdecimal() else self._max_body_bytes
        self.user_bytes.hold(user.username, holder, num_bytes)
        return True

    def handler_of(self, request: HTTPServerRequest, refusal: Refused | None) -> HTTPMessageDelegate:
        """Return what handles *request*, or answers it with *refusal*."""
        if request.method == _UNKNOWN_METHOD:  # for which Jupyter's pages log a traceback
            return self._application.get_handler_delegate(request, ErrorHandler, {"status_code": 405})
        if refusal is None:
            return self._application.find_handler(request)
        return self._application.get_handler_delegate(request, _RefusedRequest, {"refusal": refusal})

    def _is_own_host(self, host: str) -> bool:
        if self._hosts is None or host in self._hosts:
            return True
        try:
            # Another site's name can be made to lead here, an IP address cannot.
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return self._remote or is_loopback(str(address))


def hide_token(request: HTTPServerRequest) -> None:
    """Move a token in the address of *request* to its headers, and remove the query of the referring page."""
    if request.query:
        parameters = parse_qsl(request.query, keep_blank_values=True)
        tokens = [value for name, value in parameters if name == _TOKEN]
        if tokens:
            request.query = urlencode([(name, value) for name, value in parameters if name != _TOKEN])
            request.uri = f"{request.path}?{request.query}" if request.query else request.path
            for arguments in (request.arguments, request.query_arguments):
                arguments.pop(_TOKEN, None)
            request.headers["Authorization"] = f"token {tokens[-1]}"
            setattr(request, TOKEN_IN_ADDRESS, True)
    if referrer := request.headers.get("Referer"):
        try:
            request.headers["Referer"] = urlsplit(referrer)._replace(query="", fragment="").geturl()
        except ValueError:  # not an address, such as "http://["
            del request.headers["Referer"]


class _GuardedBody(HTTPMessageDelegate):
    """Passes a request to its handler; its body only if that may be kept."""

    def __init__(self, guard: RequestGuard, request: HTTPServerRequest) -> None:
        self._guard = guard
        self._request = request
        self._is_kept = False
        self._handler: HTTPMessageDelegate | None = None

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        """Find out whose the request is, before its body is read."""
        refusal = None
        try:
            self._is_kept = await self._guard.admit_body(self._request, self)
        except TooManyBytes as error:
            refusal = error
        self._handler = self._guard.handler_of(self._request, refusal)
        handled = self._handler.headers_received(start_line, headers)
        if handled is not None:
            await handled

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep a part of the body, or drop it."""
        return self._handler.data_received(chunk) if self._is_kept and self._handler is not None else None

    def finish(self) -> None:
        """Have the request answered."""
        self._guard.user_bytes.release(self)
        if self._handler is not None:
            self._handler.finish()

    def on_connection_close(self) -> None:
        """Drop what was kept."""
        self._guard.user_bytes.release(self)
        if self._handler is not None:
            self._handler.on_connection_close()


class _RefusedRequest(RequestHandler):
    """Answers a request with an error."""

    def initialize(self, refusal: Refused) -> None:
        self._refusal = refusal

    def check_xsrf_cookie(self) -> None:
        """Check nothing: there is nothing to protect."""

    def prepare(self) -> None:
        finish_refused(self, self._refusal)


class _Listener(socket.socket):
    """A listening socket that has no connection to give while none can be accepted."""

    def __init__(self, listening: socket.socket, refused: Callable[[_Listener, OSError], None]) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self.setblocking(False)
        self._refused = refused

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._refused(self, error)
            raise BlockingIOError(error.errno, error.strerror) from error


class PatientHTTPServer(HTTPServer):
    """Lets new connections wait while the process can open no more files; open connections are served.

    tornado's own server tries again at once, for as long as that lasts, and logs each attempt.
    """

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on listening sockets, which are the server's from now on."""
        super().add_sockets([_Listener(each, self._pause) for each in sockets])

    def _pause(self, listener: _Listener, error: OSError) -> None:
        log.warning("no new connection can be accepted for now: %s", error.strerror)
        self._handlers[listener.fileno()]()
        IOLoop.current().call_later(_PAUSE, self._accept_again, listener)

    def _accept_again(self, listener: _Listener) -> None:
        if listener.fileno() in self._sockets:  # it was not stopped meanwhile
            self._handlers[listener.fileno()] = add_accept_handler(listener, self._handle_connection)


def make_http_server(
    application: Any, certificate: Certificate | None, *, patience: float, **options: Any
) -> HTTPServer:
    """Return an HTTP server that does not listen yet.

    Parameters
    ----------
    application
        Handles the requests.
    certificate
        For encryption; None: no encryption.
    patience
        Seconds that a client may take to send a request, or leave a connection idle.
    options
        Further options of tornado's server.
    """
    return PatientHTTPServer(
        application,
        ssl_options=None if certificate is None else certificate.context,
        max_header_size=_MAX_HEADER_BYTES,
        idle_connection_timeout=patience,
        body_timeout=patience,
        **options,
    )


def check_port(ip: str, port: int) -> None:
    """Check that a port can be listened on.

    Parameters
    ----------
    ip
        Address to listen on; empty: all addresses.
    port
        The port.

    Raises
    ------
    ConfigError
        When it is in use, or not allowed.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            ip or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot serve on {ip or 'any address'}, port {port} ({error.strerror}); "
            "name another with --port, or stop what uses it."
        ) from None
