"""Parts of a status document: for one device, or for one user. `executor/control/status_builder.py` builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharedkernel.errors import ConfigError

Document = Mapping[str, Any]


def by_device(status: Document) -> dict[str, Document]:
    """Return a document for each device of *status*, by the device's name, in the configured order.

    Lanes have the numbers that their own executor gives them, and `users` are everybody's. A device whose executor does
    not answer has no lanes, and no sessions that anybody knows of.
    """
    devices = status.get("devices")
    if not devices:
        return {str(status["device"]["name"]): status}
    numbers = {lane["id"]: lane["number"] for lane in status["lanes"]}
    return {
        str(device["name"]): {
            **status,
            "device": device,
            "lanes": [{**lane, "id": lane["number"]} for lane in status["lanes"] if lane["device"] == device["name"]],
            "sessions": [
                {**session, "lane": numbers.get(session["lane"])}
                for session in status["sessions"]
                if session["device"] == device["name"]
            ],
        }
        for device in devices
    }


def only_device(status: Document, name: str) -> dict[str, Document]:
    """Return what :func:`by_device` has for one device.

    Parameters
    ----------
    status
        A status document.
    name
        Of the device; empty: all devices.

    Raises
    ------
    ConfigError
        When there is no such device.
    """
    documents = by_device(status)
    if name and name not in documents:
        raise ConfigError(f"there is no device {name!r} here; name one of {', '.join(documents)}.")
    return {name: documents[name]} if name else documents


def visible_to(status: dict[str, Any], user: str) -> dict[str, Any]:
    """Return a status document without what only an admin and a session's owner may see.

    Parameters
    ----------
    status
        The whole document.
    user
        Who is no admin. Other users' sessions are shown without notebook and kernel.
    """
    hidden = {"notebook": None, "kernel_id": None, "client_key": None}
    sessions = [session if session["user"] == user else {**session, **hidden} for session in status["sessions"]]
    return {**status, "sessions": sessions}
