"""The status document as a widget's HTML and plain text.

Names come from other people: every one is escaped here, since a front end runs whatever HTML a kernel sends.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from sharedkernel.describe import memory_by_kind, queue_sentence, safe_text, session_name
from sharedkernel.units import format_bytes

Document = Mapping[str, Any]

NOT_SHARED = 'This kernel is not shared, so there is nothing to show; choose the kernel "Shared GPU" to share a device.'
_GONE = "The device does not know this notebook at the moment."

#: fill of each kind's part of the bar; the words beside it say the same without colour
_COLOURS = {"persistent": "#3f7fbf", "ephemeral": "#e0a030", "others": "#b0b0b0"}
_CELL = "padding: 0 1em 0 0; text-align: left"


def usage_text(status: Document, session_id: str) -> str:
    """Return the memory of a session and its user in one line."""
    session = _find(status["sessions"], "id", session_id)
    if session is None:
        return _GONE
    return f"This notebook: {memory_by_kind(session)}. {_against_quota(status, session['user'])}"


def usage_html(status: Document, session_id: str) -> str:
    """Return the memory of a session and its user as a bar and a line for each kind."""
    session = _find(status["sessions"], "id", session_id)
    user = _find(status["users"], "name", session["user"]) if session else None
    if session is None or user is None:
        return paragraph(_GONE)
    whole = user["quota_bytes"] or status["device"]["capacity_bytes"]
    charged = user["persistent_bytes"] + user["ephemeral_bytes"]
    own = {kind: session[f"{kind}_bytes"] or 0 for kind in ("persistent", "ephemeral")}
    parts = {**own, "others": max(charged - sum(own.values()), 0)}
    bar = "".join(
        f'<div style="width: {100 * min(amount / whole, 1):.2f}%; background: {_COLOURS[kind]}"></div>'
        for kind, amount in parts.items()
    )
    rows = "".join(
        f'<tr><td style="{_CELL}"><span style="color: {_COLOURS.get(kind, "inherit")}">■</span> {kind}</td>'
        f'<td style="{_CELL}">{format_bytes(session[f"{kind}_bytes"] or 0)}</td><td>{meaning}</td></tr>'
        for kind, meaning in (
            ("persistent", "stays between iterations"),
            ("ephemeral", "needed during an iteration"),
            ("framework", "the process's own; not charged to your quota"),
        )
    )
    label = html.escape(usage_text(status, session_id), quote=True)
    return (
        f'<div role="img" aria-label="{label}" style="line-height: 1.5">'
        f'<div style="display: flex; height: 0.9em; max-width: 40em; background: rgba(128, 128, 128, 0.2)">{bar}</div>'
        f"<div>{html.escape(_against_quota(status, session['user']))}</div>"
        f'<table style="border: none">{rows}</table></div>'
    )


def queue_text(status: Document, session_id: str) -> str:
    """Return where a session stands in one line."""
    session = _find(status["sessions"], "id", session_id)
    return _GONE if session is None else queue_sentence(session, status)


def queue_html(status: Document, session_id: str) -> str:
    """Return where a session stands, and each lane with who runs and who is next."""
    names = {session["id"]: _name(session, session_id) for session in status["sessions"]}
    rows = "".join(
        f'<tr><td style="{_CELL}">lane {html.escape(safe_text(lane["id"]))}</td>'
        f'<td style="{_CELL}">{format_bytes(lane["size_bytes"])}</td>'
        f'<td style="{_CELL}">{names.get(lane["holder"], "free")}</td>'
        f"<td>{' → '.join(names.get(waiting, '?') for waiting in lane['queue']) or 'nobody waits'}</td></tr>"
        for lane in status["lanes"]
    )
    heading = "".join(f'<th style="{_CELL}">{title}</th>' for title in ("", "size", "running", "next in line"))
    table = f'<table style="border: none"><tr>{heading}</tr>{rows}</table>' if rows else ""
    return f'<div style="line-height: 1.5">{paragraph(queue_text(status, session_id))}{table}</div>'


def paragraph(sentence: str) -> str:
    """Return *sentence*, escaped, as a line of its own."""
    return f"<div>{html.escape(sentence)}</div>"


def _against_quota(status: Document, name: str) -> str:
    user = _find(status["users"], "name", name)
    if user is None:
        return _GONE
    device = status["device"]
    charged = format_bytes(user["persistent_bytes"] + user["ephemeral_bytes"])
    if user["quota_bytes"] is None:
        limit = f"no quota, the device has {format_bytes(device['capacity_bytes'])}"
    else:
        limit = f"of your quota of {format_bytes(user['quota_bytes'])}"
    return f"All your notebooks: {charged} {limit}. The device: {format_bytes(device['used_bytes'])} in use."


def _name(session: Document, own_id: str) -> str:
    """Return a session as HTML: its user, and its notebook where we may know it; our own is marked."""
    if session["id"] == own_id:
        return "<b>this notebook</b>"
    notebook = f" ({session_name(session)})" if session["notebook"] else ""
    return html.escape(f"{safe_text(session['user'])}{notebook}")


def _find(records: list[Document], field: str, value: str) -> Document | None:
    return next((record for record in records if record[field] == value), None)
