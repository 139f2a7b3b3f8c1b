"""The status document as the widgets' text: memory, the queue, and the last minutes.

JupyterLab draws the panel's own components in its place; everything else, and ``%shared``, shows this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sharedkernel.status.document import LaneStatus, SessionStatus, StatusDocument, WatchedStatus
from sharedkernel.status.figures import memory_by_kind
from sharedkernel.status.text import (
    RUNNING,
    lingering_words,
    programs_words,
    queue_sentence,
    safe_text,
    session_name,
    session_state,
    wait_outlook,
)
from sharedkernel.status.timeline import DeviceTimeline, TimelineRow
from sharedkernel.units import format_bytes, format_seconds

NOT_SHARED = 'This kernel is not shared, so there is nothing to show; choose the kernel "Shared GPU" to share a device.'
GONE = "The device does not know this notebook at the moment."
NOTHING_YET = "Nobody has used the device in the last minutes."

#: eighths of a full block, from nothing to all
_BLOCKS = " ▁▂▃▄▅▆▇█"
#: points of a curve, and of the last minutes, drawn as text
_TEXT_CURVE, _TEXT_MINUTES = 40, 30
#: most rows of a table
_MOST_ROWS = 8
#: seconds of which a share of the device is told, and those in which a session must have run to take turns
_TURNS_SECONDS, _FRESH_SECONDS = 10.0, 2.5
_RUNS = ("running",)
_WAITS, _AWAY = ("queued", "waiting", "awaiting_restore"), ("offloading", "offloaded", "restoring")


def as_text(parts: Iterable[str], status: WatchedStatus, session_id: str, history: Sequence[int] = ()) -> str:
    """Return *parts* (``usage``, ``queue``, ``lanes``) of a document, a paragraph each.

    Parameters
    ----------
    parts, status
        What of it, and the document.
    session_id
        Whose notebook this is.
    history
        Bytes that the notebook held lately, oldest first.
    """
    session = status.session(session_id)
    if session is None:
        return GONE
    texts = {
        "usage": lambda: _usage(status, session, history),
        "queue": lambda: _queue(status, session),
        "lanes": lambda: _lanes(status, session),
    }
    return "\n\n".join(texts[part]() for part in parts)


def _usage(status: StatusDocument, session: SessionStatus, history: Sequence[int]) -> str:
    """Return the memory of a session and its user, a line for each."""
    lines = [f"This notebook: {memory_by_kind(session)}.", _against_quota(status, session.user)]
    if away := session.offloaded_bytes:
        lines[0] += f" {format_bytes(away)} offloaded."
    if words := programs_words(session):
        lines.append(f"{words}.")
    if session.offload_note:
        lines.append(session.offload_note)
    # Those that were shut down count for the quota still.
    mine = (other for other in status.sessions if other.user == session.user)
    lines += [f"{session_name(other)}: {words}." for other in mine if (words := lingering_words(other))]
    if len(history) > 1:
        curve = _as_blocks(_thinned(history, _TEXT_CURVE), max(history))
        now, most = format_bytes(history[-1]), format_bytes(max(history))
        lines.append(f"Lately: {curve} now {now}, at most {most}")
    return "\n".join(lines)


def _queue(status: WatchedStatus, session: SessionStatus) -> str:
    """Return where a session stands, what wait to expect, and the lanes."""
    names = _names(status, session.id)
    lines = [_standing(session, status)]
    lanes, outside, more = _shown(status, session.id)
    for lane in lanes:
        holder = names.get(lane.holder, "free") if lane.holder else "free"
        queue = ", ".join(names.get(waiting, "?") for waiting in lane.queue)
        next_in_line = f"; next: {queue}" if queue else ""
        lines.append(f"Lane {safe_text(lane.id)} ({format_bytes(lane.size_bytes)}): {holder}{next_in_line}")
    lines += [f"Not in a lane: {names[other.id]}, {session_state(other)}" for other in outside]
    return "\n".join([*lines, more] if more else lines)


def _lanes(status: WatchedStatus, session: SessionStatus) -> str:
    """Return a line for each who ran in the last minutes: their part of the device as blocks, and for how long."""
    timeline = status.timeline
    ran: dict[str, list[TimelineRow]] = {}
    for row in timeline.rows:
        if row.seconds(_RUNS):
            ran.setdefault(_who(row, session), []).append(row)
    if not ran:
        return NOTHING_YET
    lines = [f"The last {format_seconds(timeline.end - timeline.begin)}, oldest first:"]
    lines += [_minutes(name, rows, _RUNS, timeline) for name, rows in ran.items()]
    own = [row for row in timeline.rows if row.session == session.id]
    lines += [
        _minutes(name, [row], activities, timeline)
        for row in own
        for name, activities in (("I waited", _WAITS), ("offloaded", _AWAY))
        if row.seconds(activities)
    ]
    if timeline.more_rows:
        lines.append(f"{timeline.more_rows} more sessions are not shown.")
    return "\n".join(lines)


def _minutes(name: str, rows: Sequence[TimelineRow], activities: Collection[str], timeline: DeviceTimeline) -> str:
    parts = (row.parts(activities, timeline.end - timeline.begin, _TEXT_MINUTES) for row in rows)
    blocks = _as_blocks([sum(part) for part in zip(*parts, strict=True)], 1.0)
    return f"{name:>20} |{blocks}| {format_seconds(sum(row.seconds(activities) for row in rows))}"


def _who(row: TimelineRow, session: SessionStatus) -> str:
    if row.session == session.id:
        return "this notebook"
    return "your other notebooks" if row.user == session.user else safe_text(row.user)


def _standing(session: SessionStatus, status: WatchedStatus) -> str:
    """Return where *session* stands, what to expect, and what its user can do."""
    if (turns := _turns(session, status)) is not None:
        return turns
    parts: list[str | None] = [queue_sentence(session, status)]
    if session.waiting_for is not None or session.queue_position is not None:
        parts += [wait_outlook(session, status), "Interrupt the kernel to stop waiting."]
    return " ".join(filter(None, parts))


def _turns(session: SessionStatus, status: WatchedStatus) -> str | None:
    """Return a sentence about a session that takes turns with others; None for one that does not.

    Turns are short: whether it has the device just now would be another answer each time.
    """
    timeline = status.timeline
    if session.state not in (*RUNNING, "queued"):
        return None
    fresh = [row for row in timeline.rows if row.seconds(_RUNS, timeline.end - timeline.begin - _FRESH_SECONDS)]
    own = next((row for row in fresh if row.session == session.id), None)
    others = {_who(row, session) for row in fresh if row is not own}
    if not others or own is None:
        return None
    since = timeline.end - timeline.begin - _TURNS_SECONDS
    begun = max(since, own.segments[0].begin)  # not the seconds before it began
    share = own.seconds(_RUNS, begun) / (timeline.end - timeline.begin - begun)
    names = ", ".join(sorted(others))
    return f"This notebook takes turns with {names}: it has the device {100 * min(share, 1.0):.0f} % of the time."


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
    left_out = {"lanes": len(status.lanes) - len(lanes), "sessions that wait": len(outside[_MOST_ROWS:])}
    more = ", ".join(f"{number} more {what}" for what, number in left_out.items() if number)
    return lanes, outside[:_MOST_ROWS], f"And {more}." if more else ""


def _names(status: StatusDocument, own_id: str) -> dict[str, str]:
    """Return what to call each session: its user, and its notebook where we may know it; our own is marked."""
    notebooks = {each.id: f" ({session_name(each)})" if each.notebook else "" for each in status.sessions}
    names = {each.id: f"{safe_text(each.user)}{notebooks[each.id]}" for each in status.sessions}
    return names | {own_id: "this notebook"}


def _against_quota(status: StatusDocument, name: str) -> str:
    user = status.user(name)
    if user is None:
        return GONE
    device = status.device
    charged = format_bytes(user.quota_used_bytes)
    if user.quota_bytes is None:
        limit = f"no quota, the device has {format_bytes(device.capacity_bytes)}"
    else:
        limit = f"of your quota of {format_bytes(user.quota_bytes)}"
    free = max(device.capacity_bytes - device.reserve_bytes - device.used_bytes, 0)
    return (
        f"All your notebooks: {charged} {limit}. "
        f"The device: {format_bytes(device.used_bytes)} in use, {format_bytes(free)} free."
    )


def _thinned(history: Sequence[int], most: int) -> list[int]:
    """Return at most *most* values: the highest of each stretch."""
    stretch = -(-len(history) // most)
    return [max(history[at : at + stretch]) for at in range(0, len(history), stretch)]


def _as_blocks(values: Sequence[float], top: float) -> str:
    """Return *values* as a line of block characters, *top* a full one; every value above zero is visible."""
    places = (0 if value <= 0 else max(1, round(8 * value / max(top, value))) for value in values)
    return "".join(_BLOCKS[place] for place in places)
