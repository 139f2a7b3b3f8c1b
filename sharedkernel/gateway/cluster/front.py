"""What a front decides: which host a request is for, and where a new session starts.

A kernel's host follows from its id, so every front can route every request. A new session is placed by the summaries of
the hosts, its user's limit counts over all of them. Fronts share nothing: a user who starts sessions at two of them
at the same moment may have one too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from sharedkernel.errors import QuotaExceeded, Refused
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.auth.tickets import Purpose, TicketKey
from sharedkernel.gateway.cluster.hosts import ClusterHosts, Host, HostAway
from sharedkernel.gateway.cluster.status import merge_hosts
from sharedkernel.gateway.cluster.summary import UserSummary
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.scheduling.placement import Demand, place_session
from sharedkernel.status.document import StatusDocument, read_status
from sharedkernel.status.refusal_text import explain_session_limit

#: seconds to connect to a host, for its answer, and for an answer to what is asked of several
_CONNECT, _ANSWER, _QUICK = 5.0, 120.0, 5.0
#: most requests to hosts at a time; more wait
_MAX_REQUESTS = 200
#: most clients whose host is remembered
_MAX_CLIENTS = 10_000


class PlacementOwner(Protocol):
    """What has the placement rule, which a new configuration replaces."""

    placement: str


class Front:
    """Routes requests of a front's users to the hosts.

    Parameters
    ----------
    hosts
        The hosts.
    secret
        The cluster's.
    rules
        Has the limits on the number of sessions.
    executors
        Has the rule that chooses the host of a new session.
    context
        For the hosts' certificates.
    """

    def __init__(
        self,
        hosts: ClusterHosts,
        secret: bytes,
        rules: FleetRules,
        executors: PlacementOwner,
        context: ssl.SSLContext,
    ) -> None:
        self.hosts = hosts
        self.secret = secret
        self.context = context
        self._rules = rules
        self._executors = executors
        self._client = SimpleAsyncHTTPClient(force_instance=True, max_clients=_MAX_REQUESTS)
        #: host by user and client key: a client that asks again gets the session that it has
        self._clients: dict[tuple[str, str], str] = {}

    def host_of(self, kernel_id: str) -> Host:
        """Return the host of a kernel or notebook session, which answers.

        Raises
        ------
        HostAway
            When it does not.
        Refused
            When no host has such ids.
        """
        host = self.hosts.of_kernel(kernel_id)
        if host is None:
            raise Refused(f"Kernel does not exist: {kernel_id}", reason="no_such_kernel")
        if not host.is_answering:
            raise HostAway(f"this session is on {host.why_away()}")
        return host

    def any_host(self) -> Host:
        """Return a host that answers.

        Raises
        ------
        HostAway
            When none does.
        """
        host = next(iter(self.hosts.answering()), None)
        if host is None:
            raise HostAway("no host of this cluster answers; wait for them, or see `sharedkernel host` there.")
        return host

    def ticket(self, host: Host, user: GatewayUser) -> str:
        """Return a ticket of *user* for *host*."""
        key = TicketKey.of_host(self.secret, host.name)
        return key.make(user.username, admin=user.admin, purpose=Purpose.REQUEST, now=time.time())

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
    ) -> HTTPResponse:
        """Return a host's answer to a request, whatever its status.

        Parameters
        ----------
        host, user
            To ask, and for whom.
        method, uri, body, headers
            The request.
        seconds
            To wait for the answer.

        Raises
        ------
        HostAway
            When there is no answer.
        """
        request = HTTPRequest(
            host.address.rstrip("/") + uri,
            method=method,
            headers={**dict(headers), "Authorization": f"token {self.ticket(host, user)}"},
            body=body or (b"" if method in ("POST", "PUT", "PATCH") else None),
            connect_timeout=_CONNECT,
            request_timeout=seconds,
            follow_redirects=False,
            allow_nonstandard_methods=True,
            decompress_response=False,
            ssl_options=self.context,
        )
        try:
            return await self._client.fetch(request, raise_error=False)
        except (HTTPError, OSError) as error:
            raise HostAway(f"{host.name} does not answer ({error}); its sessions run on, try again.") from None

    async def fetch_all(self, hosts: Iterable[Host], user: GatewayUser, uri: str) -> dict[str, Any]:
        """Return the JSON that each of *hosts* answers to a GET of *uri*, by name; of those that do in time."""

        async def ask(host: Host) -> tuple[str, Any]:
            with contextlib.suppress(HostAway, ValueError):
                answer = await self.fetch(host, user, "GET", uri, seconds=_QUICK)
                if answer.code == 200:
                    return host.name, json.loads(answer.body)
            return host.name, None

        answers = await asyncio.gather(*map(ask, hosts))
        return {name: answer for name, answer in answers if answer is not None}

    async def list_all(self, user: GatewayUser, uri: str) -> list[dict[str, Any]]:
        """Return what all hosts list at *uri* for a user.

        Raises
        ------
        HostAway
            When the list may lack something of theirs, which clients would give up.
        """
        self.hosts.check_listed(user.username)
        hosts = self.hosts.answering()
        lists = await self.fetch_all(hosts, user, uri)
        for host in hosts:
            if host.name not in lists and user.username in host.users:
                raise HostAway(f"{host.name}, which has sessions of yours, does not list them now; try again.")
        return [entry for name in sorted(lists) for entry in lists[name]]

    async def status(self) -> StatusDocument:
        """Return the status document of all hosts, nothing hidden.

        Raises
        ------
        HostAway
            When none answers.
        """
        answers = await self.fetch_all(self.hosts.answering(), _NOBODY, "/sharedkernel/api/status")
        if not answers:
            self.any_host()
            raise HostAway("no host of this cluster says how it is; their logs may say why, try again.")
        documents = {name: read_status(answer, name) for name, answer in answers.items()}
        away = [host for host in self.hosts.all() if host.name not in documents]
        return merge_hosts(documents, away, self._executors.placement)

    # --- new sessions -------------------------------------------------------------------------------------------------

    async def start(
        self, user: GatewayUser, uri: str, body: bytes, headers: Iterable[tuple[str, str]], client_key: str | None
    ) -> HTTPResponse:
        """Have a session started, and return the answer of the host that was asked last.

        Parameters
        ----------
        user
            Its owner.
        uri, body, headers
            The request that starts it.
        client_key
            Names the client, if it does: the session that it has already is returned.

        Raises
        ------
        SharedKernelError
            When the user has as many sessions as they may, or no host answers.
        """
        headers = list(headers)
        if client_key is not None and (host := await self._host_of_client(user, client_key)) is not None:
            answer = await self.fetch(host, user, "POST", uri, body=body, headers=headers)
            # A host that is being drained has the client's session no more, and starts none.
            if not (host.is_cordoned and answer.code == HTTPStatus.CONFLICT):
                return answer
        # No await before the session is counted in its host's summary, so parallel requests cannot exceed the limit.
        self._check_number(user.username)
        return await self._start_somewhere(user, uri, body, headers, client_key)

    async def _start_somewhere(
        self, user: GatewayUser, uri: str, body: bytes, headers: list[tuple[str, str]], client_key: str | None
    ) -> HTTPResponse:
        refused: set[str] = set()
        answer: HTTPResponse | None = None
        while True:
            try:
                host = self.place(user.username, without=refused)
            except HostAway:
                if answer is None:
                    raise
                return answer
            counted = host.users[user.username]
            if client_key is not None:
                self._remember(user.username, client_key, host.name)
            with contextlib.suppress(HostAway):
                answer = await self.fetch(host, user, "POST", uri, body=body, headers=headers)
                # 409 and 503: its executors refuse or are away, and another host's may not.
                if answer.code not in (409, 503):
                    # A summary that was on its way when the request came there did not count it.
                    now = host.users.get(user.username, counted)
                    if answer.code == HTTPStatus.CREATED and now.sessions <= counted.sessions:
                        host.users[user.username] = counted
                    return answer
            refused.add(host.name)
            self._clients.pop((user.username, client_key or ""), None)

    def place(self, user: str, *, without: Collection[str] = ()) -> Host:
        """Return the host for a new session, which counts there from now on.

        Parameters
        ----------
        user
            Its owner; a host where something waits for them is preferred.
        without
            Hosts that have refused.

        Raises
        ------
        HostAway
            When no other host answers.
        """
        hosts = [
            host
            for host in self.hosts.answering()
            if host.devices and not host.is_cordoned and host.name not in without
        ]
        if not hosts:
            self.any_host()
            if all(host.is_cordoned for host in self.hosts.answering()):
                raise HostAway("all hosts of this cluster that answer are being drained; wait for another one.")
            raise HostAway("no host of this cluster can start a session now; try again.")
        return choose_device(self._executors.placement, hosts, user)

    def _check_number(self, user: str) -> None:
        allowed = self._rules.quotas.max_sessions(user)
        if allowed is None:
            return
        existing = sum(host.users[user].sessions for host in self.hosts.all() if user in host.users)
        if existing >= allowed:
            raise QuotaExceeded(explain_session_limit(user, allowed, existing))

    async def _host_of_client(self, user: GatewayUser, client_key: str) -> Host | None:
        """Return the host that has, or starts, the session of a client; None if it has none."""
        for host in self.hosts.answering():
            if host.name == self._clients.get((user.username, client_key)):
                return host
        # This front may be new: the hosts know.
        its_own = [host for host in self.hosts.answering() if user.username in host.users]
        plain = GatewayUser(user.username)
        for name, status in (await self.fetch_all(its_own, plain, "/sharedkernel/api/status")).items():
            if any(session.get("client_key") == client_key for session in status["sessions"]):
                self._remember(user.username, client_key, name)
                return next((host for host in its_own if host.name == name), None)
        return None

    def _remember(self, user: str, client_key: str, host: str) -> None:
        self._clients.pop((user, client_key), None)
        self._clients[user, client_key] = host
        if len(self._clients) > _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]


def choose_device(rule: str, hosts: Sequence[Host], user: str) -> Host:
    """Return the host for a new session, which counts there until the host's next summary.

    Parameters
    ----------
    rule
        A name of :data:`~sharedkernel.scheduling.placement.PLACEMENTS`.
    hosts
        To choose from, with devices; at least one.
    user
        The session's owner; a host where something waits for them is preferred.
    """
    hosts = [host for host in hosts if (had := host.users.get(user)) is not None and had.has_left] or hosts
    chosen = place_session(rule, Demand(), [device for host in hosts for device in host.devices])
    name = chosen.partition("/")[0]
    host = next(host for host in hosts if host.name == name)
    number = next(number for number, device in enumerate(host.devices) if device.id == chosen)
    device = host.devices[number]
    typical = device.utilisation / device.active if device.active else 1.0
    host.devices[number] = replace(
        device,
        active=device.active + 1,
        utilisation=device.utilisation + typical,
        backlog=device.backlog + 1,
    )
    had = host.users.get(user, UserSummary(sessions=0))
    host.users[user] = msgspec.structs.replace(had, sessions=had.sessions + 1)
    return host


#: for whom a front asks what it then hides from its users
_NOBODY = GatewayUser("front", admin=True)
