"""The HTTP server: timeouts for every client, patience while files cannot be opened, a check that its port is free."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.netutil import add_accept_handler

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.tls import Certificate

log = logging.getLogger(__name__)

#: largest headers of a request
_MAX_HEADER_BYTES = 64 * 1024
#: what the system answers where a connection cannot be accepted now, and seconds until the next attempt
_NO_ROOM, _PAUSE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 0.5


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
