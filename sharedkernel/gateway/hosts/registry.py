"""The hosts that a front knows. One that is not heard is away, and never forgotten unless an admin says so.

Their names and addresses are kept in a file, so that a front that starts knows whose kernels it cannot reach yet.

Their status documents become one, as those of several devices do (`fleet/merged_status.py`), with the hosts themselves.
If there is more than one, each device, lane and session has its `host`. A device's name begins with its host's, as in
``h2/cuda:1``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from msgspec import UNSET

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.tickets import host_prefix
from sharedkernel.gateway.fleet.merged_status import join, merge
from sharedkernel.gateway.hosts.summary import HostSummary, UserSummary
from sharedkernel.scheduling.placement import Demand, DeviceState, place_session
from sharedkernel.status.document import DeviceEntry, HostEntry, StatusDocument, UserOnDevice
from sharedkernel.system.state_file import StateFile
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: most hosts of a cluster
MAX_HOSTS = 2000
#: seconds without a summary after which a host is late, and after which it is away; one comes every two seconds
_PUNCTUAL, _PATIENCE = 3.0, 10.0
#: seconds for which lists of kernels are refused because a host that had some of them is away
_LIST_PATIENCE = 300.0
#: the same for a host that has not been heard since this front started: it may have gone for good before that
_FIRST_PATIENCE = 30.0
#: of a host that has not been heard since this front started
_NO_SUMMARY = HostSummary(name="", address="", version="", devices=[])


class HostAway(Refused):
    """A host does not answer."""

    reason = "host_away"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=2.0)


@dataclass(slots=True, kw_only=True)
class Host:
    """A host of the cluster, as it registered last."""

    name: str
    address: str
    #: its devices, with the sessions that were placed there since its summary
    devices: list[DeviceState] = field(default_factory=list)
    #: its users, with the same sessions
    users: dict[str, UserSummary] = field(default_factory=dict)
    #: whether it is to get no new sessions
    is_cordoned: bool = False
    #: its last one
    summary: HostSummary = _NO_SUMMARY
    #: when its last summary came, on the monotonic clock; None: not since this front started
    heard: float | None = None

    @property
    def is_answering(self) -> bool:
        """Whether it has been heard lately."""
        return self.heard is not None and time.monotonic() < self.heard + _PATIENCE

    @property
    def is_late(self) -> bool:
        """Whether it ought to have been heard again by now, as of a host that has just been cut off."""
        return self.heard is None or time.monotonic() > self.heard + _PUNCTUAL

    @property
    def total_sessions(self) -> int:
        """The number of its sessions."""
        return sum(user.sessions for user in self.users.values())

    def entry(self) -> HostEntry:
        """Return what people are told of it."""
        ray = self.summary.ray
        return HostEntry(
            name=self.name,
            answering=self.is_answering,
            message=None if self.is_answering else self.why_away(),
            version=self.summary.version or None,
            num_devices=len(self.devices),
            num_sessions=self.total_sessions,
            cordoned=self.is_cordoned,
            drained=self.is_drained,
            in_ray=None if ray is None else ray.is_in and self.is_answering,
            adopted=None if ray is None else ray.has_adopted,
        )

    def away_entry(self) -> DeviceEntry:
        """Return the entry that stands for its devices while it does not answer."""
        return DeviceEntry(
            name=self.name, host=self.name, available=False, message=self.why_away(), num_sessions=self.total_sessions
        )

    @property
    def is_drained(self) -> bool:
        """Whether it gets no new sessions, and nobody has anything there that it waits for."""
        return self.is_cordoned and self.summary.is_drained

    def of(self, user: str) -> UserSummary:
        """Return what *user* has here."""
        return self.users.get(user, UserSummary(sessions=0))

    def count(self, user: str, change: int) -> None:
        """Count sessions of *user* that have started or ended here since the last summary."""
        had = self.of(user)
        self.users[user] = msgspec.structs.replace(had, sessions=max(0, had.sessions + change))
        if self.users[user] == UserSummary(sessions=0):
            del self.users[user]

    def why_away(self) -> str:
        """Return a sentence about a host that does not answer."""
        since = "since this gateway started"
        if self.heard is not None:
            since = f"for {format_seconds(time.monotonic() - self.heard)}"
        return f"{self.name} has not answered {since}; its sessions are not lost unless that machine restarted."

    def why_not_chosen(self) -> str:
        """Return what to say of a host that has the shelf of a user whose session started elsewhere."""
        if not self.is_answering:
            return "does not answer now"
        return "is to be taken out of service (ask its admin)" if self.is_cordoned else "is another machine"


class ClusterHosts:
    """All hosts of a cluster, by name.

    Parameters
    ----------
    path
        The file that keeps their names and addresses; an invalid one is taken for empty.
    """

    def __init__(self, path: Path) -> None:
        loss = "After this gateway's restart, hosts are unknown until they register again."
        self._file = StateFile(path, dict[str, str], loss=loss, durable=False)
        self._began = time.monotonic()
        self._hosts: dict[str, Host] = {}
        self._by_prefix: dict[str, Host] = {}
        for name, address in (self._file.read() or {}).items():
            self._add(Host(name=name, address=address))

    def _add(self, host: Host) -> None:
        self._hosts[host.name] = self._by_prefix[host_prefix(host.name)] = host

    def all(self) -> list[Host]:
        """Return all hosts, by name."""
        return [self._hosts[name] for name in sorted(self._hosts)]

    def answering(self) -> list[Host]:
        """Return the hosts that have been heard lately."""
        return [host for host in self._hosts.values() if host.is_answering]

    def of_kernel(self, kernel_id: str) -> Host | None:
        """Return the host of a kernel or a notebook session by its id; None if no host has such ids."""
        return self._by_prefix.get(kernel_id[:8])

    def register(self, summary: HostSummary) -> None:
        """Record a host's summary.

        Raises
        ------
        Refused
            When there are too many hosts, its kernels' ids would be another host's, or another one has its name.
        """
        host = self._hosts.get(summary.name)
        if host is None:
            if len(self._hosts) >= MAX_HOSTS:
                raise Refused(f"this cluster has {MAX_HOSTS} hosts, which is the most; forget those that are gone.")
            if (other := self._by_prefix.get(host_prefix(summary.name))) is not None:
                raise Refused(f"{summary.name} and {other.name} would have the same ids; call one of them otherwise.")
            host = Host(name=summary.name, address="")
            self._add(host)
            log.info("host %s at %s has joined", host.name, summary.address)
        if host.address != summary.address:
            if host.is_answering:
                raise Refused(
                    f"{host.name} is registered from {host.address}, which answers; give each host a name of its own."
                )
            host.address = summary.address
            self._file.write({host.name: host.address for host in self.all()})
        host.summary, host.users, host.is_cordoned = summary, summary.users.copy(), summary.is_cordoned
        host.devices = [device.state(host.name) for device in summary.devices]
        host.heard = time.monotonic()

    def find(self, name: str) -> Host:
        """Return a host by its name.

        Raises
        ------
        Refused
            When there is none.
        """
        host = self._hosts.get(name)
        if host is None:
            raise Refused(f"there is no host {name!r}.", reason="no_such_kernel")
        return host

    def forget(self, name: str) -> None:
        """Forget a host that is gone for good, with its sessions.

        Raises
        ------
        Refused
            When there is no such host, or it answers: it would register again.
        """
        host = self.find(name)
        if host.is_answering:
            raise Refused(f"{name} answers; end its gateway first, or it would register again.")
        del self._hosts[name], self._by_prefix[host_prefix(name)]
        self._file.write({host.name: host.address for host in self.all()})

    @property
    def is_new(self) -> bool:
        """Whether hosts may not have registered yet since this front started."""
        return time.monotonic() < self._began + _PATIENCE

    def note_on_others(self, user: str, chosen: Host) -> str:
        """Return what a new session of *user* on the *chosen* host says about what they have on others."""
        notes = []
        for host in (host for host in self.all() if host is not chosen and user in host.users):
            there = host.users[user]
            if not host.is_answering and (there.sessions or there.lingers):
                notes.append(f"An earlier session of this notebook may be on another machine: {host.why_away()}")
            if there.has_shelf and not chosen.of(user).has_shelf:
                notes.append(f"Your shelf is on {host.name}, which {host.why_not_chosen()}; it stays there.")
        return " ".join(notes)

    def of_client(self, kernel_id: str) -> Host | None:
        """Return the host of the kernel of a client, which asks for it by the client's key; None if it is given up.

        Raises
        ------
        HostAway
            When that host is away; not for ever, since it may never come back.
        """
        host = self.of_kernel(kernel_id)
        if host is None or host.is_answering:
            return host
        if host.heard is not None and time.monotonic() < host.heard + _LIST_PATIENCE:
            raise HostAway(f"the session of this notebook is on another machine: {host.why_away()}")
        return None

    def check_listed(self, user: str) -> None:
        """Check that what the hosts list is complete for *user*: clients give up a kernel that is not listed.

        Raises
        ------
        HostAway
            When a host that has sessions of the user does not answer; not for ever, since it may never come back.
        """
        now = time.monotonic()
        for host in self._hosts.values():
            if host.heard is None:
                is_awaited = now < self._began + _FIRST_PATIENCE
            else:
                is_awaited = host.of(user).sessions > 0 and now < host.heard + _LIST_PATIENCE
            if is_awaited and not host.is_answering:
                raise HostAway(host.why_away())


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
    hosts = [host for host in hosts if host.of(user).has_left] or hosts
    chosen = place_session(rule, Demand(), [device for host in hosts for device in host.devices])
    name = chosen.partition("/")[0]
    host = next(host for host in hosts if host.name == name)
    number = next(number for number, device in enumerate(host.devices) if device.id == chosen)
    device = host.devices[number]
    typical = device.utilisation / device.active if device.active else 1.0
    host.devices[number] = replace(
        device, active=device.active + 1, utilisation=device.utilisation + typical, backlog=device.backlog + 1
    )
    host.count(user, 1)
    return host


def merge_hosts(documents: Mapping[str, StatusDocument], hosts: Sequence[Host], placement: str) -> StatusDocument:
    """Return the document of all hosts.

    Parameters
    ----------
    documents
        Of the hosts that answer, by name; at least one.
    hosts
        All hosts.
    placement
        Rule that chooses the host of a new session.
    """
    parts = {
        place: _of_host(host.name, _with_devices(documents[host.name], host), is_alone=len(hosts) == 1)
        for place, host in enumerate(sorted(hosts, key=lambda host: host.name))
        if host.name in documents
    }
    return msgspec.structs.replace(
        join(parts, len(hosts), placement),
        devices=[entry for part in parts.values() for entry in part.devices or []]
        + [host.away_entry() for host in hosts if host.name not in documents],
        hosts=[host.entry() for host in hosts],
        room_requests=[request for part in parts.values() for request in part.room_requests or ()] or UNSET,
    )


def _with_devices(document: StatusDocument, host: Host) -> StatusDocument:
    """Return the document of *host* as that of several devices, also where there is only one."""
    if document.devices is not UNSET:
        return document
    # The executor's own name for it is its description.
    name = next((device.name for device in host.summary.devices), document.device.kind)
    return merge({name: document}, {}, [name], "")


def _of_host(host: str, document: StatusDocument, *, is_alone: bool) -> StatusDocument:
    """Return the document of *host* with its name on devices, lanes and sessions."""
    replace = msgspec.structs.replace
    named = UNSET if is_alone else host

    def rename(user: UserOnDevice) -> UserOnDevice:
        return replace(user, device=f"{host}/{user.device}")

    return replace(
        document,
        device=replace(document.device, name=host),
        devices=[replace(entry, name=f"{host}/{entry.name}", host=named) for entry in document.devices or ()],
        lanes=[replace(lane, device=f"{host}/{lane.device}", host=named) for lane in document.lanes],
        users=[replace(user, devices=[rename(each) for each in user.devices or ()]) for user in document.users],
        sessions=[replace(entry, device=f"{host}/{entry.device}", host=named) for entry in document.sessions],
    )
