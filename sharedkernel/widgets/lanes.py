"""The last minutes of a device as a picture: who ran in which lane, in their user's colour, and the own waits.

Drawn from the part ``timeline`` of the status document (`executor/history/timeline.py`): for each session, how much of
each second it ran. Sessions that took turns within a second are stacked, so the height of a colour is a share of the
device. The same figures stand beside the picture as a table, for who cannot see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import UNSET

from sharedkernel.status.document import (
    OwnActivity,
    RecentTimeline,
    SessionStatus,
    StatusDocument,
    TimelineTrack,
    TrackEntry,
)
from sharedkernel.status.text import safe_text
from sharedkernel.units import format_seconds
from sharedkernel.widgets import theme
from sharedkernel.widgets.render import GONE, paragraph

NOTHING_YET = "Nobody has used the device in the last minutes."
_OWN_NAME = "this notebook"
#: of the picture: its width, the height of a row, what is between rows, and where they begin
_WIDTH, _ROW, _GAP, _LEFT = 640.0, 22.0, 6.0, 92.0
#: characters of a row drawn as text
_TEXT_WIDTH = 30

_LEGEND = {
    theme.WAITING: "this notebook waits",
    theme.AWAY: "its memory is away",
}
_WAITS = {
    "queued": "waits for its turn",
    "waiting": "waits for memory",
    "awaiting_restore": "waits to be restored",
}
_AWAY = {"offloading": "offloading", "offloaded": "offloaded", "restoring": "restoring"}
#: what the own notebook did besides running: colour and words
_OWN_ACTIVITIES = {
    **{activity: (theme.WAITING, words) for activity, words in _WAITS.items()},
    **{activity: (theme.AWAY, words) for activity, words in _AWAY.items()},
}


def lanes_text(status: StatusDocument, session_id: str) -> str:
    """Return a line for each lane: this notebook's part of the last minutes as blocks, and who ran how long.

    Parameters
    ----------
    status
        The status document.
    session_id
        Whose notebook this is.
    """
    session, timeline = status.session(session_id), status.timeline
    if session is None:
        return GONE
    if not timeline or not _tracks(timeline):
        return NOTHING_YET
    lines = [f"The last {_span(timeline)}, oldest first:"]
    for track in _tracks(timeline):
        total = _total(track.sessions, timeline)
        lines.append(f"{_track_name(track):>9} |{_as_blocks(total, timeline)}| {_who(track, session)}")
    for name, activities in (("I waited", _WAITS), ("offloaded", _AWAY)):
        entries = [entry for entry in timeline.own if _is_own(entry, session_id) and entry.activity in activities]
        if any(total := _total(entries, timeline)):
            seconds = format_seconds(sum(entry.seconds for entry in entries))
            lines.append(f"{name:>9} |{_as_blocks(total, timeline)}| {seconds}")
    return "\n".join(lines)


def lanes_html(status: StatusDocument, session_id: str) -> str:
    """Return the picture, what its colours mean, and the figures as a table.

    Parameters
    ----------
    status
        The status document.
    session_id
        Whose notebook this is.
    """
    session, timeline = status.session(session_id), status.timeline
    if session is None:
        return paragraph(GONE)
    if not timeline or not _tracks(timeline):
        return paragraph(NOTHING_YET)
    rows = [[theme.escape(_track_name(track)), _bold_own(_who(track, session))] for track in _tracks(timeline)]
    own = [entry for entry in timeline.own if _is_own(entry, session_id)]
    rows += [
        ["this notebook", theme.escape(f"{_OWN_ACTIVITIES[entry.activity][1]} {format_seconds(entry.seconds)}")]
        for entry in own
        if entry.activity in _OWN_ACTIVITIES
    ]
    colours = {user.name: user.colour for user in status.users if user.colour is not UNSET}
    keys = {_key(entry, session, colours): None for track in _tracks(timeline) for entry in track.sessions}
    picture = _picture(timeline, session, colours)
    more = timeline.more_tracks
    return theme.panel(
        "Lanes of the shared device",
        theme.line(f"Who ran in the last {_span(timeline)}"),
        picture,
        theme.legend([*keys, *((colour, word) for colour, word in _LEGEND.items() if colour in picture)]),
        theme.table(f"Who ran in the last {_span(timeline)}", (), rows),
        theme.line(f"{more} more lanes are not shown.", faint=True) if more else "",
    )


def _picture(timeline: RecentTimeline, session: SessionStatus, colours: Mapping[str, str]) -> str:
    """Return the lanes as SVG, one row each, this notebook's waits above."""
    rows: list[tuple[str, list[tuple[str, list[int]]]]] = []
    waits = [
        (_OWN_ACTIVITIES[entry.activity][0], entry.percent)
        for entry in timeline.own
        if _is_own(entry, session.id) and entry.activity in _OWN_ACTIVITIES
    ]
    if waits:
        rows.append(("I wait", waits))
    for track in _tracks(timeline):
        strips = [(_key(entry, session, colours)[0], entry.percent) for entry in track.sessions]
        rows.append((_track_name(track), strips))
    height = len(rows) * (_ROW + _GAP) + 14
    parts = []
    for number, (name, strips) in enumerate(rows):
        y = number * (_ROW + _GAP)
        parts.append(theme.caption(_LEFT - 8, y + _ROW / 2 + 4, name, anchor="end"))
        parts.append(f'<g transform="translate({_LEFT:g} {y:g})">')
        parts.append(theme.strip_ground(_WIDTH - _LEFT, _ROW, 0))
        parts += _stacked(strips, timeline.bins)
        parts.append("</g>")
    bottom = height - 2
    parts.append(theme.caption(_LEFT, bottom, f"{_span(timeline)} ago"))
    parts.append(theme.caption(_WIDTH, bottom, "now", anchor="end"))
    spoken = "; ".join(f"{_track_name(track)}: {_who(track, session)}" for track in _tracks(timeline))
    return (
        f'<svg role="img" aria-label="{theme.escape(spoken)}" viewBox="0 0 {_WIDTH:g} {height:g}" '
        f'style="display: block; width: 100%; max-width: {_WIDTH:g}px">{"".join(parts)}</svg>'
    )


def _stacked(strips: Sequence[tuple[str, Sequence[int]]], num_bins: int) -> Iterator[str]:
    """Yield a path for each strip: a column each second, on top of those of the strips before."""
    width = (_WIDTH - _LEFT) / num_bins
    bottoms = [_ROW] * num_bins
    for colour, percent in strips:
        columns = []
        begin = 0
        heights = [round(_ROW * value / 100, 1) for value in percent]
        for place in range(1, num_bins + 1):
            # Columns that look the same are one.
            same = place < num_bins and (heights[place], bottoms[place]) == (heights[begin], bottoms[begin])
            if same:
                continue
            if height := min(heights[begin], bottoms[begin]):
                columns.append(
                    f"M{begin * width:.1f} {bottoms[begin]:g}v{-height:g}h{(place - begin) * width:.1f}v{height:g}z"
                )
            begin = place
        bottoms = [round(max(bottom - height, 0.0), 1) for bottom, height in zip(bottoms, heights, strict=True)]
        if columns:
            yield f'<path d="{"".join(columns)}" style="fill: {colour}"></path>'


def _tracks(timeline: RecentTimeline) -> list[TimelineTrack]:
    """Return the tracks in which anybody ran, own sessions first within each as the document has them."""
    return [track for track in timeline.tracks if any(entry.seconds for entry in track.sessions)]


def _track_name(track: TimelineTrack) -> str:
    return "past lane" if track.lane is None else f"lane {safe_text(track.lane)}"


def _key(entry: TrackEntry, session: SessionStatus, colours: Mapping[str, str]) -> tuple[str, str]:
    """Return the colour of a session and what it means: its user's, paler for the own user's other notebooks."""
    if entry.user is None:
        return theme.OTHERS, "others"
    colour = colours.get(entry.user)
    if entry.session == session.id:
        return colour or theme.OWN, _OWN_NAME
    if entry.user == session.user:
        return theme.paler(colour) if colour else theme.OWN_OTHER, "your other notebooks"
    return (colour, safe_text(entry.user)) if colour else (theme.OTHERS, "others")


def _who(track: TimelineTrack, session: SessionStatus) -> str:
    """Return who ran in a track and how long, longest first, the sessions of one other person together."""
    seconds: dict[str, float] = {}
    for entry in track.sessions:
        if entry.session == session.id:
            name = _OWN_NAME
        elif entry.user is None:
            name = "others"
        else:
            name = "your other notebooks" if entry.user == session.user else safe_text(entry.user)
        seconds[name] = seconds.get(name, 0.0) + entry.seconds
    ordered = sorted(seconds.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {format_seconds(held)}" for name, held in ordered if held)


def _bold_own(who: str) -> str:
    return ", ".join(
        f"<b>{theme.escape(part)}</b>" if part.startswith(f"{_OWN_NAME} ") else theme.escape(part)
        for part in who.split(", ")
    )


def _total(entries: Sequence[TrackEntry | OwnActivity], timeline: RecentTimeline) -> list[int]:
    return [sum(entry.percent[at] for entry in entries) for at in range(timeline.bins)]


def _is_own(entry: OwnActivity, session_id: str) -> bool:
    return entry.session == session_id


def _as_blocks(percent: Sequence[int], timeline: RecentTimeline) -> str:
    """Return percentages as blocks, each the mean of some seconds."""
    width = min(_TEXT_WIDTH, timeline.bins)
    edges = [round(place * timeline.bins / width) for place in range(width + 1)]
    means = [sum(percent[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    return theme.blocks(means, 100)


def _span(timeline: RecentTimeline) -> str:
    return format_seconds(timeline.bins * timeline.bin_seconds)
