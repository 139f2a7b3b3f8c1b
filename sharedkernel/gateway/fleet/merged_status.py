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
    parts = {place: _of_device(name, documents[name]) for place, name in enumerate(order) if name in documents}
    return msgspec.structs.replace(
        join(parts, len(order), placement),
        devices=[_entry(name, documents[name]) if name in documents else away[name] for name in order],
    )


def join(parts: Mapping[int, StatusDocument], num_places: int, placement: str) -> StatusDocument:
    """Return what several documents come to together; their devices, lanes and sessions have their places' names.

    Parameters
    ----------
    parts
        The documents, by the index of their place, a device or a host.
    num_places
        Number of all places.
    placement
        Rule that chooses the place of a new session.
    """
    replace = msgspec.structs.replace
    users: dict[str, list[UserStatus]] = {}
    for part in parts.values():
        for user in part.users:
            users.setdefault(user.name, []).append(user)

    def unique(lane: int | None, place: int) -> int | None:
        return None if lane is None else lane * num_places + place

    return StatusDocument(
        device=replace(
            combine([part.device for part in parts.values()]),
            name=" + ".join(part.device.name for part in parts.values()),
        ),
        placement=placement,
        lanes=[replace(lane, id=unique(lane.id, place)) for place, part in parts.items() for lane in part.lanes],
        users=[
            replace(combine(entries), devices=[each for entry in entries for each in entry.devices or ()])
            for entries in users.values()
        ],
        sessions=[
            replace(session, lane=unique(session.lane, place))
            for place, part in parts.items()
            for session in part.sessions
        ],
    )


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
    seen: dict[str, Any] = {"name": None} if last_seen is None else msgspec.structs.asdict(last_seen)
    named = {"name": name, "description": seen["name"], "num_sessions": num_sessions}
    return DeviceEntry(**{**seen, **named}, available=False, message=message)


def _entry(name: str, document: StatusDocument) -> DeviceEntry:
    fields = msgspec.structs.asdict(document.device)
    named = {"name": name, "description": document.device.name, "num_sessions": len(document.sessions)}
    return DeviceEntry(**{**fields, **named})


def _of_device(name: str, document: StatusDocument) -> StatusDocument:
    """Return the document of the device *name* with that name on the device, lanes, sessions and users' memory."""
    replace = msgspec.structs.replace

    def by_device(user: UserStatus) -> list[UserOnDevice]:
        memory = {field: getattr(user, field) for field in MemoryByKind.__struct_fields__}
        return [UserOnDevice(device=name, **memory)]

    return replace(
        document,
        device=replace(document.device, name=name),
        lanes=[replace(lane, number=lane.id, device=name) for lane in document.lanes],
        users=[replace(user, devices=by_device(user)) for user in document.users],
        sessions=[replace(session, device=name) for session in document.sessions],
    )


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
