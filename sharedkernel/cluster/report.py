"""The hosts of a cluster as fronts and Ray know them, merged; and short text about them. Imports no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sharedkernel.status.document import HostEntry
from sharedkernel.status.text import safe_text


def merge_hosts_known(at_front: Sequence[dict[str, Any]], in_ray: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each host, by name.

    Parameters
    ----------
    at_front
        Of the front's `/sharedkernel/api/hosts`; empty where none was asked.
    in_ray
        Of the directory; empty where Ray was not asked, or does not answer.
    """
    fronts, members = ({host["name"]: host for host in hosts} for hosts in (at_front, in_ray))
    return [_merge(name, fronts.get(name), members.get(name)) for name in sorted({*fronts, *members})]


def _merge(name: str, front: dict[str, Any] | None, member: dict[str, Any] | None) -> dict[str, Any]:
    said = member or {}
    host = {
        "name": name,
        "answering": None,
        "version": said.get("version"),
        "devices": [f"{name}/{device}" for device in said.get("devices", ())],
        "num_sessions": said.get("num_sessions"),
        "cordoned": said.get("is_cordoned"),
        "drained": said.get("is_drained") or said.get("has_left"),
        "in_ray": None,
        "adopted": None,
        "message": None,
        **(front or {}),
    }
    if member is not None:
        host["in_ray"] = member["in_ray"]
        if member.get("adopted") is not None:
            host["adopted"] = member["adopted"]
        host["message"] = member.get("problem") or host["message"]
    return host


def host_entry(host: dict[str, Any]) -> HostEntry:
    """Return a host as status documents have it."""
    return msgspec.convert(host | {"num_devices": len(host["devices"])}, HostEntry)


def messages(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with hosts, a line for each."""
    return [safe_text(f"{host['name']}: {host['message']}") for host in hosts if host["message"]]


def left_words(host: dict[str, Any]) -> list[str]:
    """Return a line for each user who still has something on a host."""
    lines = []
    for name, user in sorted(host.get("users", {}).items()):
        number_of = user["sessions"]
        parts = [f"{number_of} session{'s' * (number_of != 1)}"] if number_of else []
        parts += ["a shelf"] * user["has_shelf"] + ["a session to have back"] * user["lingers"]
        lines.append(safe_text(f"{name}: {' and '.join(parts) or 'something'}"))
    return lines
