"""One status document for several devices, merged from the executors' documents. Pure.

Fields of a single device's document have the same meaning here: `device` is the sum of the devices whose executors
answer, `users` have their sums over all of those, `lanes` and `sessions` are those of all. There are also:

- ``devices``: one entry for each device of the configuration, like `device`. Its ``name`` is the device's name in the
  configuration (``cuda:1``), ``description`` the executor's name for it, ``available`` whether its executor answers,
  ``message`` why not, ``num_sessions`` the number of its sessions. While its executor does not answer, other fields are
  null;
- ``device`` on each lane and session: the name of its device. A lane's ``id`` is unique over all devices; ``number`` is
  its id at its own executor, and so in the notebooks there;
- ``devices`` on each user: memory and quota by device, since quotas are by device. A sum can hide that one is full.

Fields that cannot be summed: a user's waits and `peak_bytes` are the largest of any device, their share and
colour, which the gateway has sent to all, are the first one's; other fields are there only if the devices agree on
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from sharedkernel.protocol import Device
from sharedkernel.status.document import (
    DeviceEntry,
    DeviceStatus,
    MemoryByKind,
    StatusDocument,
    UserOnDevice,
    UserStatus,
)

_Entry = TypeVar("_Entry", DeviceStatus, UserStatus)


def merge(
    documents: Mapping[str, StatusDocument], away: Mapping[str, DeviceEntry], order: Sequence[str], placement: str
) -> StatusDocument:
    """Return the document of all devices.

    Parameters
    ----------
    documents
        Documents of the executors that answer, by device; at least one.
    away
        Entries of the other devices, from :func:`away_entry`.
    order
        All devices, in the configuration's order.
    placement
        Rule that chooses the device of a new session.
    """
    answering = [name for name in order if name in documents]
    device = combine([documents[name].device for name in answering])
    places = {name: order.index(name) for name in answering}
    replace = msgspec.structs.replace
    return StatusDocument(
        device=replace(device, name=" + ".join(answering)),
        devices=[_entry(name, documents[name]) if name in documents else away[name] for name in order],
        placement=placement,
        lanes=[
            replace(lane, id=unique(lane.id, places[name], len(order)), number=lane.id, device=name)
            for name in answering
            for lane in documents[name].lanes
        ],
        users=_users({name: documents[name].users for name in answering}),
        sessions=[
            replace(session, lane=unique(session.lane, places[name], len(order)), device=name)
            for name in answering
            for session in documents[name].sessions
        ],
    )


def unique(lane: int | None, place: int, num_devices: int) -> int | None:
    """Return a number for a lane that is unique over all devices.

    Parameters
    ----------
    lane
        Its number on its own device; None: no lane.
    place
        Index of the device in the configuration.
    num_devices
        Number of all devices.
    """
    return None if lane is None else lane * num_devices + place


def away_entry(name: str, last_seen: Device | None, num_sessions: int, message: str) -> DeviceEntry:
    """Return the entry of a device whose executor does not answer.

    Parameters
    ----------
    name
        Its name in the configuration.
    last_seen
        The device at the executor's last answer; None: it never answered.
    num_sessions
        Number of its known sessions.
    message
        Why it does not answer, and what to do.
    """
    return DeviceEntry(
        name=name,
        description=None if last_seen is None else last_seen.name,
        kind=None if last_seen is None else last_seen.kind,
        capacity_bytes=None if last_seen is None else last_seen.capacity_bytes,
        reserve_bytes=None if last_seen is None else last_seen.reserve_bytes,
        available=False,
        message=message,
        num_sessions=num_sessions,
    )


def _entry(name: str, document: StatusDocument) -> DeviceEntry:
    fields = msgspec.structs.asdict(document.device)
    named = {"name": name, "description": document.device.name, "num_sessions": len(document.sessions)}
    return DeviceEntry(**{**fields, **named})


def _users(users: Mapping[str, Sequence[UserStatus]]) -> list[UserStatus]:
    """Return all users' entries; a user without an entry on some device uses nothing there."""
    found: dict[str, dict[str, UserStatus]] = {}
    for device, entries in users.items():
        for entry in entries:
            found.setdefault(entry.name, {})[device] = entry
    return [
        msgspec.structs.replace(
            combine(list(by_device.values())),
            devices=[
                UserOnDevice(device=device, **{name: getattr(entry, name) for name in MemoryByKind.__struct_fields__})
                for device, entry in by_device.items()
            ],
        )
        for by_device in found.values()
    ]


def _largest(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _join(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _agreed(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else UNSET


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _first_known(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not UNSET), UNSET)


#: how a field of several devices or users becomes one; other fields of users are sums, others of devices are absent
#: unless all agree
_RULES: dict[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(("capacity_bytes", "reserve_bytes", "used_bytes"), _sum),
    **dict.fromkeys(("quantum_seconds", "peak_bytes", "wait_p50_seconds", "wait_p95_seconds"), _largest),
    **dict.fromkeys(("kind", "policy"), _join),
    **dict.fromkeys(("name", "share"), _first),
    "colour": _first_known,
    "devices": _agreed,
}


def combine(entries: Sequence[_Entry]) -> _Entry:
    """Return one entry for several of the same kind, of devices, hosts or users."""
    combined = {}
    rule = _sum if isinstance(entries[0], UserStatus) else _agreed
    for name in entries[0].__struct_fields__:
        values = [getattr(entry, name) for entry in entries]
        combined[name] = _RULES.get(name, rule)(values)
    return type(entries[0])(**combined)
