"""The request guard: it hides tokens from logs, and refuses requests for other hosts, before any handler runs.

A token in the address is moved to the headers, since the gateway, Jupyter and tornado log addresses. A request for
another host is refused, so that a web page cannot reach the gateway under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler

from sharedkernel.errors import Refused
from sharedkernel.gateway.errors import finish_refused
from sharedkernel.gateway.tls import is_loopback

_TOKEN = "token"


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
    """

    def __init__(self, application: Application, *, hosts: Collection[str] | None, remote: bool) -> None:
        self._application = application
        self._remote = remote
        self._hosts = None if hosts is None else {host.lower() for host in (*hosts, "localhost")}
        if self._hosts is not None and remote:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        """Return the handler of *request*; *kwargs* are for tornado."""
        hide_token(request)
        if not self._is_own_host(request.host_name):
            return self._application.get_handler_delegate(request, _WrongHost)
        return self._application.find_handler(request, **kwargs)

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
    if referrer := request.headers.get("Referer"):
        try:
            request.headers["Referer"] = urlsplit(referrer)._replace(query="", fragment="").geturl()
        except ValueError:  # not an address, such as "http://["
            del request.headers["Referer"]


class _WrongHost(RequestHandler):
    """Refuses a request for another host."""

    def prepare(self) -> None:
        name = self.request.host_name
        finish_refused(
            self,
            Refused(
                f"this gateway is not {name!r}; if it should be, its admin adds that to c.ServerApp.local_hostnames.",
                reason="not_allowed",
            ),
        )
