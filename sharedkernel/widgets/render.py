"""The status document as the widgets' HTML and plain text: memory, and the queue. The lanes' picture is in `lanes.py`.

The HTML says the same as the text, and says it in words and tables too, so that it is of use where styles and pictures
are taken out (GitHub, an untrusted notebook).
"""

from __future__ import annotations

from collections.abc import Sequence

from sharedkernel.status.document import LaneStatus, SessionStatus, StatusDocument
from sharedkernel.status.text import (
    charged_bytes,
    lingering_words,
    memory_by_kind,
    queue_sentence,
    safe_text,
    session_name,
    session_state,
    wait_outlook,
)
from sharedkernel.units import format_bytes
from sharedkernel.widgets import theme

NOT_SHARED = 'This kernel is not shared, so there is nothing to show; choose the kernel "Shared GPU" to share a device.'
GONE = "The device does not know this notebook at the moment."

#: points of a curve drawn as text
_TEXT_CURVE = 40
#: most rows of a table
_MOST_ROWS = 8
#: seconds of which a share of the device is told, and those in which a session must have run to take turns
_TURNS_SECONDS, _FRESH_SECONDS = 10, 2


def usage_text(status: StatusDocument, session_id: str, history: Sequence[int] = ()) -> str:
    """Return the memory of a session and its user, a line for each.

    Parameters
    ----------
    status
        The document.
    session_id
        Whose notebook this is.
    history
        Bytes that the notebook held lately, oldest first.
    """
    session = status.session(session_id)
    if session is None:
        return GONE
    lines = [f"This notebook: {memory_by_kind(session)}.", _against_quota(status, session.user)]
    if away := session.offloaded_bytes:
        lines[0] += f" {format_bytes(away)} offloaded."
    lines += _lingering(status, session.user)
    if len(history) > 1:
        curve = theme.blocks(_thinned(history, _TEXT_CURVE), max(history))
        lines.append(f"Lately: {curve} {_curve_label(history)}")
    return "\n".join(lines)


def usage_html(status: StatusDocument, session_id: str, history: Sequence[int] = ()) -> str:
    """Return the memory of a session and its user as a bar, a line for each kind, and a curve.

    Parameters
    ----------
    status, session_id, history
        See :func:`usage_text`.
    """
    session = status.session(session_id)
    user = status.user(session.user) if session else None
    if session is None or user is None:
        return paragraph(GONE)
    whole = user.quota_bytes or status.device.capacity_bytes
    charged = charged_bytes(user)
    own = {"persistent": session.persistent_bytes, "ephemeral": session.ephemeral_bytes or 0}
    others = max(charged - sum(own.values()), 0)
    kinds = [
        (theme.OWN, "persistent", own["persistent"], "stays between iterations"),
        (theme.EPHEMERAL, "ephemeral", own["ephemeral"], "needed during an iteration"),
        (theme.OWN_OTHER, "your other notebooks", others, ""),
    ]
    parts = [(colour, amount / whole, f"{word}: {format_bytes(amount)}") for colour, word, amount, _ in kinds]
    rows = [[theme.key(colour, word), format_bytes(amount), meaning] for colour, word, amount, meaning in kinds]
    framework = format_bytes(session.framework_bytes)
    rows.insert(2, [theme.key(theme.NONE, "framework"), framework, "the process's own; not charged"])
    if away := session.offloaded_bytes:
        rows.append(
            [theme.key(theme.AWAY, "offloaded"), format_bytes(away), "moved away; the next cell brings it back"]
        )
    curve = theme.sparkline(history, max(*history, 1), _curve_label(history)) if len(history) > 1 else ""
    return theme.panel(
        "Memory of the shared device",
        theme.bar(parts, usage_text(status, session_id).replace("\n", " ")),
        theme.line(_against_quota(status, session.user)),
        *(theme.line(sentence, faint=True) for sentence in _lingering(status, session.user)),
        theme.table("This notebook's memory by kind", (), rows),
        curve and theme.line(f"This notebook lately: {_curve_label(history)}", faint=True) + curve,
        theme.line(session.offload_note, faint=True) if session.offload_note else "",
    )


def queue_text(status: StatusDocument, session_id: str) -> str:
    """Return where a session stands, what wait to expect, and the lanes.

    Parameters
    ----------
    status
        The status document.
    session_id
        Whose notebook this is.
    """
    session = status.session(session_id)
    if session is None:
        return GONE
    names = _names(status, session_id)
    lines = [_standing(session, status)]
    lanes, outside, more = _shown(status, session_id)
    for lane in lanes:
        holder = names.get(lane.holder, "free") if lane.holder else "free"
        queue = ", ".join(names.get(waiting, "?") for waiting in lane.queue)
        next_in_line = f"; next: {queue}" if queue else ""
        lines.append(f"Lane {safe_text(lane.id)} ({format_bytes(lane.size_bytes)}): {holder}{next_in_line}")
    lines += [f"Not in a lane: {names[other.id]}, {session_state(other)}" for other in outside]
    return "\n".join([*lines, more] if more else lines)


def queue_html(status: StatusDocument, session_id: str) -> str:
    """Return where a session stands, each lane with who runs and who is next, and who waits for memory.

    Parameters
    ----------
    status
        The status document.
    session_id
        Whose notebook this is.
    """
    session = status.session(session_id)
    if session is None:
        return paragraph(GONE)
    names = {
        other: "<b>this notebook</b>" if other == session_id else theme.escape(name)
        for other, name in _names(status, session_id).items()
    }
    shown, outside, more = _shown(status, session_id)
    lanes = [
        [
            f"lane {theme.escape(lane.id)}",
            format_bytes(lane.size_bytes),
            names.get(lane.holder or "", "free"),
            " → ".join(names.get(waiting, "?") for waiting in lane.queue) or "nobody waits",
        ]
        for lane in shown
    ]
    waiting = [[names[other.id], theme.escape(session_state(other))] for other in outside]
    return theme.panel(
        "Queue of the shared device",
        theme.line(_standing(session, status), bold=True),
        theme.table("Lanes", ("", "size", "running", "next in line"), lanes) if lanes else "",
        theme.table("Sessions that wait for memory", ("not in a lane", ""), waiting) if waiting else "",
        theme.line(more, faint=True) if more else "",
    )


def paragraph(sentence: str) -> str:
    """Return *sentence*, escaped, as a line of its own."""
    return theme.line(sentence)


def held_bytes(status: StatusDocument, session_id: str) -> int:
    """Return the memory that a session holds at this moment besides its framework, bytes.

    Parameters
    ----------
    status
        The status document.
    session_id
        Whose notebook this is.
    """
    session = status.session(session_id)
    if session is None:
        return 0
    return session.persistent_bytes + max(session.live_bytes, 0)


def _standing(session: SessionStatus, status: StatusDocument) -> str:
    """Return where *session* stands, what to expect, and what its user can do."""
    turns = _turns(session, status)
    if turns is not None:
        return turns
    parts = [queue_sentence(session, status)]
    if session.waiting_for is not None or session.queue_position is not None:
        outlook = wait_outlook(session, status)
        parts += [outlook] if outlook else []
        parts.append("Interrupt the kernel to stop waiting.")
    return " ".join(parts)


def _turns(session: SessionStatus, status: StatusDocument) -> str | None:
    """Return a sentence about a session that takes turns with others; None for one that does not.

    Turns are short: whether it has the device just now would be another answer each time.
    """
    if session.state not in ("running", "preempting", "queued") or not status.timeline:
        return None
    percent = [0] * _TURNS_SECONDS
    others = set()
    for track in status.timeline.tracks:
        for entry in track.sessions:
            recent = entry.percent[-_TURNS_SECONDS:]
            if entry.session == session.id:
                percent = [before + more for before, more in zip(percent, recent, strict=True)]
            elif any(recent[-_FRESH_SECONDS:]):
                others.add("your other notebooks" if entry.user == session.user else entry.user or "others")
    if not others or not any(percent[-_FRESH_SECONDS:]):
        return None
    names = ", ".join(sorted(map(safe_text, others)))
    # Not the seconds before it began.
    lately = percent[next(place for place, value in enumerate(percent) if value) :]
    return f"This notebook takes turns with {names}: it has the device {sum(lately) / len(lately):.0f} % of the time."


def _shown(status: StatusDocument, session_id: str) -> tuple[list[LaneStatus], list[SessionStatus], str]:
    """Return the lanes and the sessions outside of lanes that there is room for, and a sentence about the others.

    This notebook's lane and those in use come first; sessions outside, by their place in the queue.
    """

    def weight(lane: LaneStatus) -> tuple[bool, bool, bool]:
        own = session_id == lane.holder or session_id in lane.queue
        return not own, lane.holder is None, not lane.queue

    chosen = {lane.id for lane in sorted(status.lanes, key=weight)[:_MOST_ROWS]}
    lanes = [lane for lane in status.lanes if lane.id in chosen]
    outside = [session for session in status.sessions if session.state in ("waiting", "restoring")]
    outside.sort(key=lambda session: (session.id != session_id, session.queue_position or 0))
    more = [
        f"{number} more {what}"
        for number, what in (
            (len(status.lanes) - len(lanes), "lanes"),
            (len(outside[_MOST_ROWS:]), "sessions that wait"),
        )
        if number
    ]
    return lanes, outside[:_MOST_ROWS], f"And {', '.join(more)}." if more else ""


def _names(status: StatusDocument, own_id: str) -> dict[str, str]:
    """Return what to call each session: its user, and its notebook where we may know it; our own is marked."""
    names = {}
    for session in status.sessions:
        notebook = f" ({session_name(session)})" if session.notebook else ""
        names[session.id] = "this notebook" if session.id == own_id else f"{safe_text(session.user)}{notebook}"
    return names


def _against_quota(status: StatusDocument, name: str) -> str:
    user = status.user(name)
    if user is None:
        return GONE
    device = status.device
    charged = format_bytes(charged_bytes(user))
    if user.quota_bytes is None:
        limit = f"no quota, the device has {format_bytes(device.capacity_bytes)}"
    else:
        limit = f"of your quota of {format_bytes(user.quota_bytes)}"
    free = max(device.capacity_bytes - device.reserve_bytes - device.used_bytes, 0)
    return (
        f"All your notebooks: {charged} {limit}. "
        f"The device: {format_bytes(device.used_bytes)} in use, {format_bytes(free)} free."
    )


def _lingering(status: StatusDocument, user: str) -> list[str]:
    """Return a sentence for each of *user*'s sessions that were shut down and count for the quota still."""
    mine = [session for session in status.sessions if session.user == user]
    return [f"{session_name(session)}: {words}." for session in mine if (words := lingering_words(session))]


def _curve_label(history: Sequence[int]) -> str:
    return f"now {format_bytes(history[-1])}, at most {format_bytes(max(history))}"


def _thinned(history: Sequence[int], most: int) -> list[int]:
    """Return at most *most* values: the highest of each stretch."""
    stretch = -(-len(history) // most)
    return [max(history[at : at + stretch]) for at in range(0, len(history), stretch)]
