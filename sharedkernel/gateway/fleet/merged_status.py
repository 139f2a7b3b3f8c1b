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

Fields that cannot be summed: a user's waits and `peak_bytes` are the largest of any device; other fields are there only
if the devices agree on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sharedkernel.protocol import Device

Document = Mapping[str, Any]

#: fields of `device` and of users that are summed
_SUMMED = frozenset(
    {
        "capacity_bytes", "reserve_bytes", "used_bytes", "quota_bytes", "persistent_bytes", "ephemeral_bytes",
        "framework_bytes", "shelf_bytes", "offloaded_bytes", "attained_service_seconds", "iterations",
    }
)  # fmt: skip
#: fields that are the largest of any device
_LARGEST = frozenset({"quantum_seconds", "peak_bytes", "wait_p50_seconds", "wait_p95_seconds"})
#: fields that are joined as text
_JOINED = frozenset({"kind", "policy"})
#: fields of a user's entry for each device
_BY_DEVICE = ("quota_bytes", "persistent_bytes", "ephemeral_bytes", "framework_bytes", "shelf_bytes")


def merge(
    documents: Mapping[str, Document], away: Mapping[str, Document], order: Sequence[str], placement: str
) -> dict[str, Any]:
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
    entries = [_entry(name, documents[name]) if name in documents else away[name] for name in order]
    device = _combine([documents[name]["device"] for name in answering])
    places = {name: order.index(name) for name in answering}
    return {
        "device": {**device, "name": " + ".join(answering)},
        "devices": entries,
        "placement": placement,
        "lanes": [
            {**lane, "id": unique(lane["id"], places[name], len(order)), "number": lane["id"], "device": name}
            for name in answering
            for lane in documents[name]["lanes"]
        ],
        "users": _users({name: documents[name]["users"] for name in answering}),
        "sessions": [
            {**session, "lane": unique(session["lane"], places[name], len(order)), "device": name}
            for name in answering
            for session in documents[name]["sessions"]
        ],
    }


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


def away_entry(name: str, last_seen: Device | None, num_sessions: int, message: str) -> dict[str, Any]:
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
    return {
        "name": name,
        "description": None if last_seen is None else last_seen.name,
        "kind": None if last_seen is None else last_seen.kind,
        "capacity_bytes": None if last_seen is None else last_seen.capacity_bytes,
        "reserve_bytes": None if last_seen is None else last_seen.reserve_bytes,
        "used_bytes": None,
        "policy": None,
        "quantum_seconds": None,
        "available": False,
        "message": message,
        "num_sessions": num_sessions,
    }


def _entry(name: str, document: Document) -> dict[str, Any]:
    device = document["device"]
    return {
        **device,
        "name": name,
        "description": device["name"],
        "available": True,
        "message": None,
        "num_sessions": len(document["sessions"]),
    }


def _users(users: Mapping[str, Sequence[Document]]) -> list[dict[str, Any]]:
    """Return all users' entries; a user without an entry on some device uses nothing there."""
    found: dict[str, dict[str, Document]] = {}
    for device, entries in users.items():
        for entry in entries:
            found.setdefault(entry["name"], {})[device] = entry
    return [
        {
            **_combine(list(by_device.values())),
            "devices": [
                {"device": device, **{key: entry[key] for key in _BY_DEVICE if key in entry}}
                for device, entry in by_device.items()
            ],
        }
        for by_device in found.values()
    ]


def _combine(entries: Sequence[Document]) -> dict[str, Any]:
    """Return one entry for several of the same kind."""
    combined = {}
    for key in entries[0]:
        values = [entry[key] for entry in entries if key in entry]
        if len(values) == len(entries) and (value := _one(key, values)) is not _DIFFERS:
            combined[key] = value
    return combined


_DIFFERS = object()


def _one(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if key in _SUMMED:
        return sum(known)
    if key in _LARGEST:
        return max(known, default=None)
    if key in _JOINED:
        return ", ".join(_distinct(str(value) for value in values))
    return values[0] if all(value == values[0] for value in values) else _DIFFERS


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
