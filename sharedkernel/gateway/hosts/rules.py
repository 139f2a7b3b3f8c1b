"""Quotas and policy on the hosts, as admins have changed them through this front.

A change is applied on every host that answers. A host that is away misses it, and gets what holds here as a whole once
it is back: what it has missed is no matter. What was changed outlives the front, and so does who has missed something.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from tornado.httpclient import HTTPResponse

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway
from sharedkernel.gateway.hosts.requests import HostRequests
from sharedkernel.system.state_file import StateFile
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

QUOTAS_PATH, POLICY_PATH = "/sharedkernel/api/quotas", "/sharedkernel/api/policy"
_HEADERS = [("Content-Type", "application/json")]
#: seconds that a host may take to apply quotas or a policy
_ANSWER = 10.0


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    #: hosts that have missed a change
    missed: set[str] = set()
    quotas: dict[str, Any] = {}
    #: empty: none was chosen here
    policy: str = ""
    #: who changed something last
    admin: str = ""


class HostRules:
    """Applies changes of quotas and policy on all hosts, and knows which of them have missed one.

    Parameters
    ----------
    path
        The file that keeps what absent hosts need; an invalid one is taken for empty.
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
        self._file = StateFile(path, _Kept, loss=loss)
        self._hosts = hosts
        self._requests = requests
        self._rules = rules
        self._tasks = tasks
        kept = self._file.read() or _Kept()
        self._missed, self._policy, self._admin = set(kept.missed), kept.policy, kept.admin
        #: hosts that are getting what holds now
        self._sending: set[str] = set()
        try:
            rules.quotas.put(kept.quotas)
        except ConfigError as error:
            log.warning("quotas that were changed before this gateway's restart cannot be used: %s", error)

    async def send(self, user: GatewayUser, method: str, uri: str, body: bytes) -> dict[str, HTTPResponse]:
        """Send *user*'s change to all hosts, and return the answers of those that have got it, by name."""
        now = [host for host in self._hosts.answering() if host.name not in self._missed]
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
        self._admin, self._policy = user.username, self._policy if policy is None else policy
        names = [host.name for host in self._hosts.all()]
        self._missed.update(name for name in names if name not in answers)
        self._write()
        return [f"{name} does not answer; it gets this once it is back." for name in names if name not in answers] + [
            f"{name} has refused this: {answer.code} {answer.reason}."
            for name, answer in answers.items()
            if answer.code >= HTTPStatus.BAD_REQUEST
        ]

    def update(self, host: Host) -> None:
        """Send a host, which has just been heard, what holds, if it has missed a change."""
        if host.name in self._missed and host.name not in self._sending:
            self._sending.add(host.name)
            self._tasks.spawn(self._update(host))

    def forget(self, host: str) -> None:
        """Forget a host."""
        self._missed.discard(host)
        self._write()

    async def _update(self, host: Host) -> None:
        sent: list[tuple[str, dict[str, Any]]] = []
        try:
            while (rules := self._in_force()) != sent:  # which may change meanwhile
                for uri, body in rules:
                    if not await self._send(host, uri, body):
                        return  # its next summary is another occasion
                sent = rules
            self.forget(host.name)
        except HostAway as error:
            log.info("%s still has to get quotas and policy: %s", host.name, error)
        finally:
            self._sending.discard(host.name)

    async def _send(self, host: Host, uri: str, body: dict[str, Any]) -> bool:
        """Send a host quotas or the policy; return whether it can use them now."""
        user, data = GatewayUser(self._admin, admin=True), json.dumps(body).encode()
        answer = await self._requests.fetch(host, user, "PUT", uri, body=data, headers=_HEADERS, seconds=_ANSWER)
        if answer.code >= HTTPStatus.BAD_REQUEST:
            log.warning("%s, which is back, does not accept %s: %d %s", host.name, uri, answer.code, answer.reason)
        return answer.code != HTTPStatus.SERVICE_UNAVAILABLE

    def _in_force(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests that give a host what holds here."""
        policy = [(POLICY_PATH, {"policy": self._policy})] if self._policy else []
        return [(f"{QUOTAS_PATH}?replace=true", self._rules.quotas.overrides()), *policy]

    def _write(self) -> None:
        kept = _Kept(missed=self._missed, quotas=self._rules.quotas.overrides(), policy=self._policy, admin=self._admin)
        self._file.write(kept)
