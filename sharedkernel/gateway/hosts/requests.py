"""A front's requests to the hosts: with a ticket for each, within a time for each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient

from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.auth.tickets import Purpose, TicketKey
from sharedkernel.gateway.hosts.registry import Host, HostAway

log = logging.getLogger(__name__)

#: seconds to connect to a host, for its answer, and for an answer to what is asked of several
_CONNECT, _ANSWER, _QUICK = 5.0, 120.0, 5.0
#: seconds to connect to a host where another one may be asked instead: a start is to take less than a second
IF_PROMPT = 0.7
#: most requests to a host at a time; more wait as long as they would for a connection
_MAX_REQUESTS = 50


class HostUnreached(HostAway):
    """A host has not got a request, so another one may."""


class StartLost(HostAway):
    """A host that was to start a session may have done so, or not."""

    def __init__(self, message: str, host: Host) -> None:
        super().__init__(message)
        self.host = host


@contextlib.contextmanager
def reached(host: Host) -> Iterator[None]:
    """Go on where *host* has not got a request to start a session.

    Raises
    ------
    StartLost
        When it may have got it.
    """
    try:
        yield
    except HostUnreached:
        pass
    except HostAway as error:
        raise StartLost(str(error), host) from None


class HostRequests:
    """Asks the hosts in the name of a front's users.

    Parameters
    ----------
    secret
        The cluster's.
    context
        For the hosts' certificates.
    """

    def __init__(self, secret: bytes, context: ssl.SSLContext) -> None:
        self.secret = secret
        self.context = context
        #: by the host's name: one that hangs must not delay requests to the others
        self._http: dict[str, SimpleAsyncHTTPClient] = {}

    def headers(self, host: Host, user: GatewayUser) -> dict[str, str]:
        """Return the headers of a request of *user* to *host*: its name, and a ticket."""
        key = TicketKey.of_host(self.secret, host.name)
        ticket = key.make(user.username, admin=user.admin, purpose=Purpose.REQUEST, now=time.time())
        return {"Host": urlsplit(host.address).netloc, "Authorization": f"token {ticket}"}

    async def fetch(
        self,
        host: Host,
        user: GatewayUser,
        method: str,
        uri: str,
        *,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        seconds: float = _ANSWER,
        connect_seconds: float = _CONNECT,
    ) -> HTTPResponse:
        """Return a host's answer to a request, whatever its status.

        Parameters
        ----------
        host, user
            To ask, and for whom.
        method, uri, body, headers
            The request.
        seconds, connect_seconds
            To wait for the answer, and for the connection.

        Raises
        ------
        HostUnreached
            When it has not got the request.
        HostAway
            When there is no answer.
        """
        if host.name not in self._http:
            self._http[host.name] = SimpleAsyncHTTPClient(force_instance=True, max_clients=_MAX_REQUESTS)
        request = HTTPRequest(
            host.address.rstrip("/") + uri,
            method=method,
            headers={**dict(headers), **self.headers(host, user)},
            body=body or (b"" if method in ("POST", "PUT", "PATCH") else None),
            connect_timeout=connect_seconds,
            request_timeout=seconds,
            follow_redirects=False,
            allow_nonstandard_methods=True,
            decompress_response=False,
            ssl_options=self.context,
        )
        try:
            answer = await self._http[host.name].fetch(request, raise_error=False)
        except (HTTPError, OSError) as error:
            kind = HostUnreached if _is_unreached(error) else HostAway
            raise kind(f"{host.name} does not answer ({error}); its sessions run on, try again.") from None
        if answer.code == HTTPStatus.FORBIDDEN and _reason(answer.body) is None:
            raise no_trust(host)
        return answer

    async def fetch_all(self, hosts: Iterable[Host], user: GatewayUser, uri: str) -> dict[str, Any]:
        """Return the JSON that each of *hosts* answers to a GET of *uri*, by name; of those that do in time."""
        found: dict[str, Any] = {}
        for name, answer in (await self.fetch_from_each(hosts, user, "GET", uri)).items():
            if isinstance(answer, HTTPResponse) and answer.code == HTTPStatus.OK:
                with contextlib.suppress(ValueError):
                    found[name] = json.loads(answer.body)
        return found

    async def fetch_from_each(
        self, hosts: Iterable[Host], user: GatewayUser, method: str, uri: str, **options: Any
    ) -> dict[str, HTTPResponse | HostAway]:
        """Return what each of *hosts* answers to a request, with *options* as of :meth:`fetch`, by name."""

        async def ask(host: Host) -> tuple[str, HTTPResponse | HostAway]:
            try:
                return host.name, await self.fetch(host, user, method, uri, seconds=_QUICK, **options)
            except HostAway as error:
                return host.name, error

        return dict(await asyncio.gather(*map(ask, hosts)))

    def forget(self, name: str) -> None:
        """Forget a host."""
        self._http.pop(name, None)


def no_trust(host: Host) -> HostAway:
    """Return the error for a host that does not believe a ticket: its user's token is not what is wrong."""
    log.error("%s does not believe this front's tickets; compare the clocks of both machines, and its key", host.name)
    return HostUnreached(
        f"{host.name} does not accept this gateway's requests; its sessions run on, tell its admin to read the logs."
    )


def _reason(body: bytes) -> Any:
    """Return the reason in a refusal; None: the ticket was refused before anything was looked at."""
    try:
        return json.loads(body).get("reason")
    except (ValueError, AttributeError):
        return None


def _is_unreached(error: Exception) -> bool:
    """Whether a request that has failed with *error* was not sent at all."""
    if isinstance(error, HTTPTimeoutError):
        return "during request" not in str(error)  # but while it waited for a connection
    is_other = isinstance(error, ConnectionRefusedError | socket.gaierror | ssl.SSLError)
    return is_other or getattr(error, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH)
