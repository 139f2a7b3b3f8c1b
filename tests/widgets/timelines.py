"""The last minutes as an executor would send them, of ten seconds."""

from __future__ import annotations

from typing import Any

from sharedkernel.status.document import StatusDocument, WatchedStatus
from sharedkernel.status.timeline import DeviceTimeline, TimelineRow, TimelineSegment
from tests.status.documents import document

#: activity, begin and end; what part of the time it was that
Did = tuple[str, float, float, float]


def row(session: str, user: str, *did: Did) -> TimelineRow:
    """Return what a session did."""
    segments = [TimelineSegment(begin, end, {activity: part * (end - begin)}) for activity, begin, end, part in did]
    return TimelineRow(session=session, user=user, notebook=None, segments=segments)


def watched(*rows: TimelineRow, more: int = 0, **fields: Any) -> WatchedStatus:
    """Return the document as a session is sent it, with *fields* instead of its parts."""
    return as_watched(document(**fields), *rows, more=more)


def as_watched(status: StatusDocument, *rows: TimelineRow, more: int = 0) -> WatchedStatus:
    """Return *status* with *rows* as the last ten seconds."""
    timeline = DeviceTimeline(begin=1000.0, end=1010.0, oldest=0.0, rows=[*rows], more_rows=more)
    return WatchedStatus(**{name: getattr(status, name) for name in status.__struct_fields__}, timeline=timeline)
