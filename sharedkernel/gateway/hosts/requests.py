"""A front's requests to the hosts, with a ticket and a time for each, and the quotas and policy that it sends them.

A change of these by an admin is applied on every host that answers. A host that is away misses it, and gets what holds
here as a whole once it is back: what it has missed is no matter. What was changed outlives the front, and so does who
has missed something.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from copy import deepcopy
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.auth.tickets import Purpose, TicketKey
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway
from sharedkernel.system.state_file import StateFile
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds to connect to a host, for its answer, and for an answer to what is asked of several
_CONNECT, _ANSWER, _QUICK = 5.0, 120.0, 5.0
#: seconds to connect to a host where another one may be asked instead: a start is to take less than a second
IF_PROMPT = 0.7
#: most requests to a host at a time; more wait as long as they would for a connection
_MAX_REQUESTS = 50
QUOTAS_PATH, POLICY_PATH = "/sharedkernel/api/quotas", "/sharedkernel/api/policy"
_HEADERS = [("Content-Type", "application/json")]
#: seconds that a host may take to apply quotas or a policy
_RULES_ANSWER = 10.0


class HostUnreached(HostAway):
    """A host has not got a request, so another one may."""


class StartLost(HostAway):
    """A host that was to start a session may have done so, or not."""

    def __init__(self, message: str, host: Host) -> None:
        super().__init__(message)
        self.host = host


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
                return host.name, await self.fetch(host, user, method, uri, **{"seconds": _QUICK, **options})
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


class _KeptRules(msgspec.Struct, kw_only=True):
    #: hosts that have missed a change
    missed: set[str] = set()
    #: when the gateway of each host started that was heard, seconds since 1970
    started: dict[str, float] = {}
    quotas: dict[str, Any] = {}
    #: empty: none was chosen here
    policy: str = ""
    #: who changed something last
    admin: str = ""


class HostRules:
    """Applies changes of quotas and policy on all hosts, and knows which of them have missed one.

    A host has them in memory: one that starts, or joins, gets them anew. One that was away gets them in the place of
    what it has.

    Parameters
    ----------
    path
        The file that keeps what was changed here, and who lacks it; an invalid one is taken for empty.
    hosts
        All hosts.
    requests
        Asks them.
    rules
        The front's own, with the quotas that hold.
    tasks
        Runs what is sent to hosts that are back.
    """

    def __init__(
        self, path: Path, hosts: ClusterHosts, requests: HostRequests, rules: FleetRules, tasks: BackgroundTasks
    ) -> None:
        loss = "After this gateway's restart, hosts that are away now lack changes of quotas and policy."
        self._file = StateFile(path, _KeptRules, loss=loss)
        self._hosts = hosts
        self._requests = requests
        self._rules = rules
        self._tasks = tasks
        self._kept = self._file.read() or _KeptRules()
        #: hosts that have none of it
        self._new: set[str] = set()
        #: hosts that are getting what holds now
        self._sending: set[str] = set()
        try:
            rules.quotas.put(self._kept.quotas)
        except ConfigError as error:
            log.warning("quotas that were changed before this gateway's restart cannot be used: %s", error)

    async def send(self, user: GatewayUser, method: str, uri: str, body: bytes) -> dict[str, HTTPResponse]:
        """Send *user*'s change to all hosts, and return the answers of those that have got it, by name."""
        lacking = self._kept.missed | self._new
        now = [host for host in self._hosts.answering() if host.name not in lacking]
        found = await self._requests.fetch_from_each(now, user, method, uri, body=body or None, headers=_HEADERS)
        return {
            name: answer
            for name, answer in found.items()
            # that of a host whose executors are away
            if not isinstance(answer, HostAway) and answer.code != HTTPStatus.SERVICE_UNAVAILABLE
        }

    def hold(self, user: GatewayUser, answers: Mapping[str, HTTPResponse], *, policy: str | None = None) -> list[str]:
        """Have all hosts get what holds from now on; return a note for each that has not got it.

        Parameters
        ----------
        user
            Who has changed quotas or policy.
        answers
            As :meth:`send` has returned them.
        policy
            The new one; None: quotas have changed.
        """
        self._kept.admin, self._kept.policy = user.username, self._kept.policy if policy is None else policy
        names = [host.name for host in self._hosts.all()]
        self._kept.missed.update(name for name in names if name not in answers)
        self._write()
        return [f"{name} does not answer; it gets this once it is back." for name in names if name not in answers] + [
            f"{name} has refused this: {answer.code} {answer.reason}."
            for name, answer in answers.items()
            if answer.code >= HTTPStatus.BAD_REQUEST
        ]

    def update(self, host: Host) -> None:
        """Send a host, which has just been heard, what holds, if it has missed a change or is new."""
        started = host.summary.started
        if self._kept.started.get(host.name) != started:
            self._kept.started[host.name] = started
            if self._kept.admin:  # else nothing was changed here
                self._new.add(host.name)
        is_lacking = host.name in self._kept.missed or host.name in self._new
        if host.devices and is_lacking and host.name not in self._sending:
            self._sending.add(host.name)
            self._tasks.spawn(self._update(host))

    def forget(self, host: str) -> None:
        """Forget a host."""
        self._new.discard(host)
        self._kept.missed.discard(host)
        self._kept.started.pop(host, None)
        self._write()

    def reset(self) -> None:
        """Let nothing that was changed here hold any more; hosts keep theirs until they read their configuration."""
        self._new.clear()
        self._kept = _KeptRules(started=self._kept.started)
        self._write()

    async def _update(self, host: Host) -> None:
        started, sent = host.summary.started, list[tuple[str, dict[str, Any]]]()
        try:
            while (rules := self._in_force(host.name)) != sent:  # which may change meanwhile
                for uri, body in rules:
                    if not await self._send(host, uri, body):
                        return  # its next summary is another occasion
                sent = rules
            if self._kept.started.get(host.name) == started:
                self._new.discard(host.name)
                self._kept.missed.discard(host.name)
                self._write()
        except HostAway as error:
            log.info("%s still has to get quotas and policy: %s", host.name, error)
        finally:
            self._sending.discard(host.name)

    async def _send(self, host: Host, uri: str, body: dict[str, Any]) -> bool:
        """Send a host quotas or the policy; return whether it can use them now."""
        user, data = GatewayUser(self._kept.admin, admin=True), json.dumps(body).encode()
        answer = await self._requests.fetch(host, user, "PUT", uri, body=data, headers=_HEADERS, seconds=_RULES_ANSWER)
        if answer.code >= HTTPStatus.BAD_REQUEST:
            log.warning("%s, which is back, does not accept %s: %d %s", host.name, uri, answer.code, answer.reason)
        return answer.code != HTTPStatus.SERVICE_UNAVAILABLE

    def _in_force(self, host: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests that give *host* what holds here; one that is new keeps what another front has put."""
        policy = [(POLICY_PATH, {"policy": self._kept.policy})] if self._kept.policy else []
        uri = f"{QUOTAS_PATH}?replace=true" if host in self._kept.missed else QUOTAS_PATH
        return [(uri, deepcopy(self._rules.quotas.overrides())), *policy]

    def _write(self) -> None:
        self._kept.quotas = self._rules.quotas.overrides()
        self._file.write(self._kept)
