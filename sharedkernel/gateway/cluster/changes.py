"""Changes of quotas and policy that hosts have not got yet, since they were away: sent to each once it is back.

They are kept in a file, so that they outlive their front. A host gets them in their order, and later ones after them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.cluster.hosts import Host, HostAway
from sharedkernel.gateway.cluster.requests import HostRequests
from sharedkernel.system.state_file import StateFile
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: most changes that wait for a host, and bytes of one of them
MAX_CHANGES, MAX_BYTES = 100, 64 * 1024
#: seconds for a host to apply one
_ANSWER = 10.0


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of quotas or policy, as an admin has sent it."""

    method: str
    uri: str
    body: str = ""
    #: the admin
    user: str

    @property
    def path(self) -> str:
        """Path of the route."""
        return self.uri.partition("?")[0]

    def supersedes(self, earlier: RuleChange) -> bool:
        """Whether nothing of *earlier* is left after this one."""
        if self.path != earlier.path:
            return False
        is_whole = self.uri.endswith("/policy") or (self.method == "DELETE" and "?" not in self.uri)
        return is_whole or (self.method == "DELETE" and self.uri == earlier.uri)

    def joined(self, earlier: RuleChange) -> RuleChange | None:
        """Return one change for *earlier* and this one, which follows it; None where two are needed."""
        if not (self.method == earlier.method == "PUT" and self.uri == earlier.uri):
            return None
        body = json.dumps(_merged(json.loads(earlier.body), json.loads(self.body)))
        return None if len(body) > MAX_BYTES else msgspec.structs.replace(self, body=body)


def _merged(first: Any, second: Any) -> Any:
    """Return *first* with what *second* says instead, as two requests for quotas have the effect of one."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {name: _merged(first[name], value) if name in first else value for name, value in second.items()}


class PendingChanges:
    """The changes that wait for hosts, by the hosts' names.

    Parameters
    ----------
    path
        The file that keeps them; an invalid one is taken for empty.
    requests
        Sends them.
    tasks
        Runs that.
    """

    def __init__(self, path: Path, requests: HostRequests, tasks: BackgroundTasks) -> None:
        loss = "After this gateway's restart, hosts that are away now lack changes of quotas and policy."
        self._file = StateFile(path, dict[str, list[RuleChange]], loss=loss)
        self._requests = requests
        self._tasks = tasks
        self._changes = self._file.read() or {}
        #: hosts that are getting theirs now
        self._sending: set[str] = set()

    def __contains__(self, host: str) -> bool:
        """Whether something waits for a host, so that later changes have to wait, too."""
        return host in self._changes

    def check(self, hosts: Sequence[Host], body: bytes) -> None:
        """Check that a change can wait for those of *hosts* that need it.

        Raises
        ------
        Refused
            When it is too large, or so many wait already; nothing may be changed anywhere then.
        """
        if len(body) > MAX_BYTES:
            raise Refused(f"the change has {len(body)} bytes; the limit is {MAX_BYTES}.", reason="bad_request")
        for host in hosts:
            if not host.is_answering and len(self._changes.get(host.name, ())) >= MAX_CHANGES:
                raise Refused(
                    f"{MAX_CHANGES} changes wait for {host.name}, which is away; try again when it is back, or forget "
                    "it if it is gone for good."
                )

    def add(self, host: str, change: RuleChange) -> None:
        """Let a change wait for a host."""
        waiting = [each for each in self._changes.get(host, []) if not change.supersedes(each)]
        if waiting and (joined := change.joined(waiting[-1])) is not None:
            change = joined
            waiting.pop()
        self._changes[host] = [*waiting, change][-MAX_CHANGES:]
        self._file.write(self._changes)

    def send_to(self, host: Host) -> None:
        """Send a host, which has just been heard, what waits for it."""
        if host.name in self._changes and host.name not in self._sending:
            self._sending.add(host.name)
            self._tasks.spawn(self._send(host))

    def forget(self, host: str) -> None:
        """Drop what waits for a host."""
        if self._changes.pop(host, None) is not None:
            self._file.write(self._changes)

    async def _send(self, host: Host) -> None:
        try:
            while waiting := self._changes.get(host.name):
                change = waiting[0]
                answer = await self._requests.fetch(
                    host,
                    GatewayUser(change.user, admin=True),
                    change.method,
                    change.uri,
                    body=change.body.encode() or None,
                    headers=[("Content-Type", "application/json")],
                    seconds=_ANSWER,
                )
                if answer.code == HTTPStatus.SERVICE_UNAVAILABLE:
                    return  # its executors are away yet; its next summary is another occasion
                if answer.code >= HTTPStatus.BAD_REQUEST:
                    log.warning("%s refuses a change that waited for it: %d %s", host.name, answer.code, answer.reason)
                else:
                    log.info("%s has got a change that waited for it: %s %s", host.name, change.method, change.uri)
                # one that came meanwhile may have replaced it or been joined to it
                left = [each for each in self._changes.get(host.name, []) if each is not change]
                self._changes[host.name] = left
                if not left:
                    del self._changes[host.name]
                self._file.write(self._changes)
        except HostAway as error:
            log.info("changes go on waiting for %s: %s", host.name, error)
        finally:
            self._sending.discard(host.name)
