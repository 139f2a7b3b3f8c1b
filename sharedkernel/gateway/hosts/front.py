"""The decisions of a front: which host a request is for, and where a new session starts.

A kernel's host follows from its id, so every front can route every request. A new session is placed by the summaries of
the hosts, its user's limit counts over all of them. Fronts share nothing: a user who starts sessions at two of them
at the same moment may have one too many.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import UNSET
from tornado.httpclient import HTTPResponse
from tornado.iostream import IOStream

from sharedkernel.errors import QuotaExceeded, Refused
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway, choose_device, merge_hosts
from sharedkernel.gateway.hosts.requests import IF_PROMPT, HostRequests, HostRules, HostUnreached, StartLost
from sharedkernel.gateway.http.splice import connect
from sharedkernel.gateway.kernels.starting import COLOUR_HEADER, NOTE_HEADER
from sharedkernel.status.document import StatusDocument, read_status
from sharedkernel.status.refusal_text import explain_session_limit

#: answers to a start: its executors refuse or are away, and another host's may not
_ELSEWHERE = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE)
#: most kernels whose clients are remembered
_MAX_KERNELS = 10_000
#: seconds for which a client whose start got no answer starts nothing elsewhere
_LOST_PATIENCE = 60.0
#: seconds that a new session waits for a device while hosts or their executors are still to come, and between two looks
_DEVICE_PATIENCE, _LOOK = 5.0, 0.1


#: URI, body and headers of a request for a session
StartRequest = tuple[str, bytes, list[tuple[str, str]]]


class Front:
    """Routes requests of a front's users to the hosts.

    Parameters
    ----------
    hosts
        The hosts.
    requests
        Asks them.
    rules
        Has the limits on the number of sessions.
    executors
        Has the rule that chooses the host of a new session.
    host_rules
        Has the quotas and the policy of the hosts.
    """

    def __init__(
        self,
        hosts: ClusterHosts,
        requests: HostRequests,
        rules: FleetRules,
        executors: Executors,
        host_rules: HostRules,
    ) -> None:
        self.hosts = hosts
        self.host_rules = host_rules
        self.requests = requests
        self._rules = rules
        self._executors = executors
        #: starts in progress, by user, client key and notebook: one that is asked for again is not made twice
        self._starting: dict[tuple[str, str | None, str | None], asyncio.Future[HTTPResponse]] = {}
        #: kernels by user and client key: a status document may not show yet what has just started
        self._kernels: dict[tuple[str, str], str] = {}
        #: hosts that may have started a session but whose answer was lost, and until when, by user and client key
        self._lost: dict[tuple[str, str], tuple[Host, float]] = {}
        #: the last request for a status document of all hosts
        self._status: asyncio.Future[StatusDocument] | None = None
        #: number of starts in progress, by user and host
        self._num_starting: Counter[tuple[str, str]] = Counter()
        #: number of all starts that have begun here, by user
        self._num_begun: Counter[str] = Counter()

    def host_of(self, kernel_id: str) -> Host:
        """Return the host of a kernel or notebook session, which answers.

        Raises
        ------
        HostAway
            When it does not, or may not have registered yet.
        Refused
            When no host has such ids.
        """
        host = self.hosts.of_kernel(kernel_id)
        if host is None and self.hosts.is_new:
            # Clients give up a kernel that does not exist.
            raise HostAway("this gateway has just started and does not know all its hosts yet; try again.")
        if host is None:
            raise Refused(f"Kernel does not exist: {kernel_id}", reason="no_such_kernel")
        if not host.is_answering:
            raise HostAway(f"this session is on another machine: {host.why_away()}")
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

    async def list_all(self, user: GatewayUser, uri: str) -> list[dict[str, Any]]:
        """Return what all hosts list at *uri* for a user.

        Raises
        ------
        HostAway
            When the list may lack something of theirs, which clients would give up.
        """
        self.hosts.check_listed(user.username)
        hosts = self.hosts.answering()
        lists = await self.requests.fetch_all(hosts, user, uri)
        for host in hosts:
            if host.name not in lists and host.of(user.username).sessions:
                raise HostAway(f"{host.name}, which has sessions of yours, does not list them now; try again.")
        return [entry for name in sorted(lists) for entry in lists[name]]

    async def status(self) -> StatusDocument:
        """Return the status document of all hosts, nothing hidden.

        Hosts are asked once at a time, however many ask here, and always after they have asked.

        Raises
        ------
        HostAway
            When none answers.
        """
        if (before := self._status) is not None:
            await asyncio.wait([before])
        if self._status is before:
            self._status = asyncio.ensure_future(self._ask_status())
        assert self._status is not None
        return await asyncio.shield(self._status)

    async def _ask_status(self) -> StatusDocument:
        answers = await self.requests.fetch_all(self.hosts.answering(), _NOBODY, "/sharedkernel/api/status")
        if not answers:
            self.any_host()
            raise HostAway("no host of this cluster says how it is; their logs may say why, try again.")
        documents = {name: read_status(answer, name) for name, answer in answers.items()}
        merged = merge_hosts(documents, self.hosts.all(), self._executors.placement)
        for user in merged.users:  # another front may have chosen their colour
            if user.colour is not UNSET:
                self._rules.colours.choose(user.name, user.colour)
        return merged

    # --- new sessions -------------------------------------------------------------------------------------------------

    async def start(
        self, user: GatewayUser, request: StartRequest, *, client_key: str | None = None, path: str | None = None
    ) -> HTTPResponse:
        """Have a session started, and return the answer of the host that was asked last.

        Parameters
        ----------
        user
            Its owner.
        request
            The request that starts it.
        client_key, path
            Names of the client and of the notebook, if the session that they have already is to be returned.

        Raises
        ------
        SharedKernelError
            When the user has as many sessions as they may, or no host answers.
        """
        if client_key is None and path is None:
            return await self._start_new(user, request)
        key = user.username, client_key, path
        if (starting := self._starting.get(key)) is None:
            starting = self._starting[key] = asyncio.ensure_future(self._start_once(user, client_key, path, request))
            starting.add_done_callback(lambda _: self._starting.pop(key))
        return await asyncio.shield(starting)

    async def _start_once(
        self, user: GatewayUser, client_key: str | None, path: str | None, request: StartRequest
    ) -> HTTPResponse:
        uri, body, headers = request
        key = user.username, str(client_key)
        if path is None:
            host = await self._host_of_client(user, str(client_key)) or self._lost_start(*key)
        else:
            found = [str(entry["id"]) for entry in await self.list_all(user, uri) if entry.get("path") == path]
            host = self.host_of(found[0]) if found else None
        if host is not None:
            answer = await self.requests.fetch(host, user, "POST", uri, body=body, headers=headers)
            is_lost = key in self._lost
            if answer.code != HTTPStatus.SERVICE_UNAVAILABLE:  # then its executor, which is away, may have the session
                self._lost.pop(key, None)
            # A host that refuses has no session of the client, if that did not hear of one or if it is being drained.
            if not ((is_lost or host.is_cordoned) and answer.code == HTTPStatus.CONFLICT):
                return answer
        try:
            answer = await self._start_new(user, request)
        except StartLost as error:
            if client_key is not None:
                now = time.monotonic()
                self._lost = {each: lost for each, lost in self._lost.items() if lost[1] > now}
                self._lost[key] = error.host, now + _LOST_PATIENCE
            raise
        if client_key is not None and answer.code == HTTPStatus.CREATED:
            started = json.loads(answer.body)  # a kernel, or a notebook session
            self._kernels[key] = str(started.get("kernel", started)["id"])
            if len(self._kernels) > _MAX_KERNELS:
                del self._kernels[next(iter(self._kernels))]
        return answer

    async def _start_new(self, user: GatewayUser, request: StartRequest) -> HTTPResponse:
        uri, body, headers = request
        await self._some_device()
        # Nothing is awaited between the check and the session's being counted in its host's summary, so parallel
        # requests cannot exceed the limit.
        await self._check_number(user.username)
        headers = [*headers, (COLOUR_HEADER, self._rules.colours.choose(user.username))]
        refused: set[str] = set()
        answer: HTTPResponse | None = None
        while True:
            try:
                host = self.place(user.username, without=refused)
            except HostAway:
                if answer is None:
                    raise
                return answer
            counted, heard = host.users[user.username], host.heard
            patience = {} if len(self._placeable(refused)) == 1 else {"connect_seconds": IF_PROMPT}
            note = self.hosts.note_on_others(user.username, host)
            noted = [*headers, (NOTE_HEADER, note)] if note else headers
            self._num_starting[user.username, host.name] += 1
            self._num_begun[user.username] += 1
            try:
                answer = await self.requests.fetch(host, user, "POST", uri, body=body, headers=noted, **patience)
            except HostUnreached:
                pass
            except HostAway as error:
                raise StartLost(str(error), host) from None
            else:
                if answer.code not in _ELSEWHERE:
                    # A summary that was on its way when the request came there did not count it.
                    if answer.code == HTTPStatus.CREATED and host.of(user.username).sessions <= counted.sessions:
                        host.users[user.username] = counted
                    return answer
            finally:
                self._num_starting[user.username, host.name] -= 1
                self._num_starting += Counter()  # drops zeros
            if host.heard == heard:  # no summary has come since it was counted there
                host.count(user.username, -1)
            refused.add(host.name)

    def place(self, user: str, *, without: Collection[str] = ()) -> Host:
        """Return the host for a new session, which counts there from now on.

        Parameters
        ----------
        user
            Its owner; a host where something waits for them is preferred. One that is late is taken only if it has
            that, or if there is no other.
        without
            Hosts that have refused.

        Raises
        ------
        HostAway
            When no other host answers.
        """
        hosts = self._placeable(without)
        if not hosts:
            self.any_host()
            if all(host.is_cordoned for host in self.hosts.answering()):
                raise HostAway("all hosts of this cluster that answer are being drained; wait for another one.")
            raise HostAway("no host of this cluster can start a session now; try again.")
        punctual = [host for host in hosts if not host.is_late or host.of(user).has_left]
        return choose_device(self._executors.placement, punctual or hosts, user)

    async def _some_device(self) -> None:
        """Wait for a device, for a while, if there may be one soon.

        A host registers as soon as its gateway runs, perhaps before its executors do, and a front knows no host yet.
        """
        end = time.monotonic() + _DEVICE_PATIENCE
        while not self._placeable(()) and time.monotonic() < end:
            answering = self.hosts.answering()
            if not self.hosts.is_new and all(host.summary.is_complete or host.is_cordoned for host in answering):
                return
            await asyncio.sleep(_LOOK)

    def _placeable(self, without: Collection[str]) -> list[Host]:
        """Return the hosts that may start sessions, but those named *without*."""
        return [
            host
            for host in self.hosts.answering()
            if host.devices and not host.is_cordoned and host.name not in without
        ]

    async def _check_number(self, user: str) -> None:
        allowed = self._rules.quotas.max_sessions(user)
        if allowed is None or self._num_sessions(user) < allowed:
            return
        # A summary may be older than the end of a session.
        hosts = {host.name: host for host in self.hosts.answering() if host.of(user).sessions}
        starting, begun = self._num_starting.copy(), self._num_begun[user]
        lists = await self.requests.fetch_all(hosts.values(), GatewayUser(user), "/api/kernels")
        if self._num_begun[user] == begun:  # else the lists may lack a session that has started meanwhile
            for name, kernels in lists.items():
                there = len(kernels) + starting[user, name]
                hosts[name].count(user, min(0, there - hosts[name].of(user).sessions))
        if (existing := self._num_sessions(user)) >= allowed:
            raise QuotaExceeded(explain_session_limit(user, allowed, existing))

    def _num_sessions(self, user: str) -> int:
        # A summary may be older than the requests that are under way.
        numbers = ((host.of(user).sessions, self._num_starting[user, host.name]) for host in self.hosts.all())
        return sum(map(max, numbers))

    def _lost_start(self, user: str, client_key: str) -> Host | None:
        """Return the host that may have started a session for a client without its hearing of it; None: there is none.

        Raises
        ------
        HostAway
            When that host does not answer.
        """
        host, until = self._lost.get((user, client_key), (None, 0.0))
        if host is None or time.monotonic() > until:
            self._lost.pop((user, client_key), None)
            return None
        if not host.is_answering:
            raise HostAway(f"{host.name} may have started this session: {host.why_away()}")
        return host

    async def _host_of_client(self, user: GatewayUser, client_key: str) -> Host | None:
        """Return the host that has the session of a client; None if it has none."""
        kernel = self._kernels.get((user.username, client_key))
        host = None if kernel is None else self.hosts.of_client(kernel)
        if host is not None:
            found = await self.requests.fetch(host, user, "GET", f"/api/kernels/{kernel}")
            if found.code == HTTPStatus.OK:
                return host
        self._kernels.pop((user.username, client_key), None)
        # This front may be new: the hosts know.
        hosts = {host.name: host for host in self.hosts.answering() if user.username in host.users}
        plain = GatewayUser(user.username)
        for name, status in (await self.requests.fetch_all(hosts.values(), plain, "/sharedkernel/api/status")).items():
            if any(session.get("client_key") == client_key for session in status["sessions"]):
                return hosts[name]
        return None

    def forget(self, name: str) -> None:
        """Forget a host that is gone for good; see :meth:`ClusterHosts.forget`."""
        self.hosts.forget(name)
        self.host_rules.forget(name)
        self.requests.forget(name)


#: for whom a front asks what it then hides from its users
_NOBODY = GatewayUser("front", admin=True)


async def connect_at_host(front: Front, user: GatewayUser) -> tuple[IOStream, Mapping[str, str]]:
    """Return a connection for a request about a user's files, and headers for it.

    It leads to a host on which the user has sessions, if there is one: homes are the same on all hosts.

    Raises
    ------
    HostAway
        When no host answers.
    """
    host = next((host for host in front.hosts.answering() if user.username in host.users), None) or front.any_host()
    try:
        stream = await connect(host.address, front.requests.context)
    except OSError as error:
        raise HostAway(f"{host.name} does not answer ({error}); try again.") from None
    return stream, front.requests.headers(host, user)
