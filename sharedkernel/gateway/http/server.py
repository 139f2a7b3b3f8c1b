"""The HTTP server: timeouts for every client, and a check that its port is free."""

from __future__ import annotations

import socket
from typing import Any

from tornado.httpserver import HTTPServer

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.tls import Certificate

#: largest headers of a request
_MAX_HEADER_BYTES = 64 * 1024


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
    return HTTPServer(
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
