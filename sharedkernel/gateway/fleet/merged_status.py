"""One status document for several devices, made of the one that each executor gives of its own. Pure.

The names that a single device's document has mean the same here: `device` sums up the devices whose executors answer,
`users` what each user has on all of those, `lanes` and `sessions` are everybody's. Beside them:

- ``devices``: one entry for each device of the configuration, like `device`, but ``name`` is the device's name there
  (``cuda:1``), ``description`` what the executor calls it, ``available`` whether its executor answers, ``message`` why
  not, ``num_sessions`` how many sessions are there. While it does not answer, what only it knows is null;
- ``device`` on each lane and session: the name of its device. A lane's ``id`` is unique over all devices; ``number`` is
  what its own executor, and so the notebooks that it serves, call it;
- ``devices`` on each user: memory and quota by device, because quotas are. Sums can hide that one device is full.

What cannot be summed is not made up: a user's waits are the longest of any device (those over all devices are no
longer), `peak_bytes` is the largest of any device, and other fields are there if the devices agree on them.
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
#: fields of which the largest of any device is told
_LARGEST = frozenset({"quantum_seconds", "peak_bytes", "wait_p50_seconds", "wait_p95_seconds"})
#: fields that are put together as words
_JOINED = frozenset({"kind", "policy"})
#: what a user's entry says of each device
_BY_DEVICE = ("quota_bytes", "persistent_bytes", "ephemeral_bytes", "framework_bytes", "shelf_bytes")


def merge(
    documents: Mapping[str, Document], away: Mapping[str, Document], order: Sequence[str], placement: str
) -> dict[str, Any]:
    """Return the document of all devices.

    Parameters
    ----------
    documents
        What the executors said, by device; at least one.
    away
        Entries of the other devices, from :func:`away_entry`.
    order
        All devices, as configured.
    placement
        The rule by which new sessions get their device.
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
    """Return a number for a lane of the device at *place* that no lane of another device has."""
    return None if lane is None else lane * num_devices + place


def away_entry(name: str, last_seen: Device | None, num_sessions: int, message: str) -> dict[str, Any]:
    """Return the entry of a device whose executor does not answer.

    Parameters
    ----------
    name
        In the configuration.
    last_seen
        What it was when it answered last; None: it never did.
    num_sessions
        Sessions that are known to be there.
    message
        What is wrong, and what to do.
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
    """Return everybody's entries; those whom some executors do not know have nothing there."""
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
        if len(values) == len(entries) and (value := _one(key, values)) is not _UNSAID:
            combined[key] = value
    return combined


_UNSAID = object()


def _one(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if key in _SUMMED:
        return sum(known)
    if key in _LARGEST:
        return max(known, default=None)
    if key in _JOINED:
        return ", ".join(_distinct(str(value) for value in values))
    return values[0] if all(value == values[0] for value in values) else _UNSAID


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
