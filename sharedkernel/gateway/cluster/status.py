"""One status document for several hosts, merged from their own. Pure.

As that of several devices (`fleet/merged_status.py`), and there is `host` on each device and session. A device's name
begins with its host's, as in ``h2/cuda:1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
from msgspec import UNSET

from sharedkernel.gateway.cluster.hosts import Host
from sharedkernel.gateway.fleet.merged_status import combine, merge
from sharedkernel.status.document import DeviceEntry, StatusDocument, UserOnDevice, UserStatus


def merge_hosts(documents: Mapping[str, StatusDocument], away: Sequence[Host], placement: str) -> StatusDocument:
    """Return the document of all hosts.

    Parameters
    ----------
    documents
        Of the hosts that answer, by name; at least one.
    away
        The other hosts.
    placement
        Rule that chooses the host of a new session.
    """
    several = {name: _with_devices(document) for name, document in sorted(documents.items())}
    parts = [_of_host(name, document) for name, document in several.items()]
    numbers = count()
    lanes, sessions = [], []
    for part in parts:
        ids = {lane.id: next(numbers) for lane in part.lanes}
        lanes += [msgspec.structs.replace(lane, id=ids[lane.id]) for lane in part.lanes]
        sessions += [
            msgspec.structs.replace(entry, lane=None if entry.lane is None else ids.get(entry.lane))
            for entry in part.sessions
        ]
    users: dict[str, list[UserStatus]] = {}
    for part in parts:
        for user in part.users:
            users.setdefault(user.name, []).append(user)
    return StatusDocument(
        device=msgspec.structs.replace(combine([part.device for part in parts]), name=" + ".join(several)),
        devices=[entry for part in parts for entry in part.devices or []] + [_away(host) for host in away],
        placement=placement,
        lanes=lanes,
        users=[
            msgspec.structs.replace(
                combine(entries), devices=[each for entry in entries for each in entry.devices or ()]
            )
            for entries in users.values()
        ],
        sessions=sessions,
        room_requests=[request for part in parts for request in part.room_requests or ()] or UNSET,
    )


def _with_devices(document: StatusDocument) -> StatusDocument:
    """Return the document as that of several devices, also where there is only one."""
    if document.devices is not UNSET:
        return document
    name = document.device.kind  # the executor's own name for it is its description
    return merge({name: document}, {}, [name], "")


def _of_host(host: str, document: StatusDocument) -> StatusDocument:
    """Return the document of *host* with its name on devices, lanes and sessions."""
    replace = msgspec.structs.replace

    def rename(user: UserOnDevice) -> UserOnDevice:
        return replace(user, device=f"{host}/{user.device}")

    return replace(
        document,
        devices=[replace(entry, name=f"{host}/{entry.name}", host=host) for entry in document.devices or ()],
        lanes=[replace(lane, device=f"{host}/{lane.device}") for lane in document.lanes],
        users=[replace(user, devices=[rename(each) for each in user.devices or ()]) for user in document.users],
        sessions=[replace(entry, device=f"{host}/{entry.device}", host=host) for entry in document.sessions],
    )


def _away(host: Host) -> DeviceEntry:
    return DeviceEntry(
        name=host.name,
        host=host.name,
        available=False,
        message=host.why_away(),
        num_sessions=sum(user.sessions for user in host.users.values()),
    )
