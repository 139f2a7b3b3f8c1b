"""One status document for several hosts, merged from their own. Pure.

As that of several devices (`fleet/merged_status.py`), with the hosts themselves. If there is more than one, each
device, lane and session has its `host`. A device's name begins with its host's, as in ``h2/cuda:1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from sharedkernel.gateway.fleet.merged_status import join, merge
from sharedkernel.gateway.hosts.registry import Host
from sharedkernel.status.document import DeviceEntry, HostEntry, StatusDocument, UserOnDevice


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
        place: _of_host(host.name, _with_devices(documents[host.name]), is_alone=len(hosts) == 1)
        for place, host in enumerate(sorted(hosts, key=lambda host: host.name))
        if host.name in documents
    }
    return msgspec.structs.replace(
        join(parts, len(hosts), placement),
        devices=[entry for part in parts.values() for entry in part.devices or []]
        + [_away(host) for host in hosts if host.name not in documents],
        hosts=[host_entry(host) for host in hosts],
        room_requests=[request for part in parts.values() for request in part.room_requests or ()] or UNSET,
    )


def _with_devices(document: StatusDocument) -> StatusDocument:
    """Return the document as that of several devices, also where there is only one."""
    if document.devices is not UNSET:
        return document
    name = document.device.kind  # the executor's own name for it is its description
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


def host_entry(host: Host) -> HostEntry:
    """Return what people are told of a host."""
    ray = host.summary.ray
    return HostEntry(
        name=host.name,
        answering=host.is_answering,
        message=None if host.is_answering else host.why_away(),
        version=host.summary.version or None,
        num_devices=len(host.devices),
        num_sessions=host.total_sessions,
        cordoned=host.is_cordoned,
        drained=host.is_drained,
        in_ray=None if ray is None else ray.is_in and host.is_answering,
        adopted=None if ray is None else ray.has_adopted,
    )


def _away(host: Host) -> DeviceEntry:
    return DeviceEntry(
        name=host.name,
        host=host.name,
        available=False,
        message=host.why_away(),
        num_sessions=sum(user.sessions for user in host.users.values()),
    )
