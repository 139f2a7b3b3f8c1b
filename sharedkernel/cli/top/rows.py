"""The rows of ``sharedkernel top`` from a status document: one view each of sessions, people and lanes.

A view has rows that can be sorted by each column and filtered by their text. No terminal is needed to make one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from rich.text import Text

from sharedkernel.status.document import DeviceEntry, LaneStatus, SessionStatus, StatusDocument, UserStatus
from sharedkernel.status.figures import MEMORY, SESSION, USER, Figure, Place, memory_by_kind, shown
from sharedkernel.status.tables import STATE_STYLES, cell, queue_order
from sharedkernel.status.text import (
    NOTHING,
    device_on_host,
    lingering_words,
    safe_text,
    session_name,
    session_state,
)
from sharedkernel.units import format_bytes

#: what a column is sorted by where a row has nothing in it: behind all others
_LAST = (1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewColumn:
    """A column: of text, which takes its part of the width that the numbers leave, or of numbers."""

    name: str
    #: part of the width; 0: a number
    ratio: int = 0
    #: characters of a number
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """A row."""

    #: names it from one document to the next
    key: str
    cells: tuple[Text, ...]
    #: what each column is sorted by; numbers are compared the other way round, the largest first
    ranks: tuple[Any, ...]
    #: its place where it is sorted by no column
    place: Any
    #: the session that it shows
    session: SessionStatus | None = None

    def matches(self, words: str) -> bool:
        """Whether each of *words* is in one of its cells, in capitals or not."""
        shown = "\n".join(each.plain for each in self.cells).casefold()
        return all(word in shown for word in words.casefold().split())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """A table."""

    columns: tuple[ViewColumn, ...]
    rows: tuple[ViewRow, ...]

    def arranged(self, *, words: str = "", column: str | None = None, reverse: bool = False) -> list[ViewRow]:
        """Return the rows to show, in their order.

        Parameters
        ----------
        words
            Only rows that have these, see :meth:`ViewRow.matches`.
        column
            Name of the column that they are sorted by; None, or a column that there is not: the view's own order.
        reverse
            Whether the last one comes first.
        """
        found = [row for row in self.rows if row.matches(words)]
        names = [each.name for each in self.columns]
        found.sort(key=lambda row: row.place)
        if column in names:
            number = names.index(column)
            found.sort(key=lambda row: row.ranks[number])
        return found[::-1] if reverse else found

    def widths(self, total: int) -> list[int]:
        """Return how wide each column is where all take *total* characters, one between two of them."""
        left = total - sum(column.width for column in self.columns) - len(self.columns)
        parts = sum(column.ratio for column in self.columns)
        return [column.width or max(4, left * column.ratio // parts) for column in self.columns]


def sessions_view(status: StatusDocument) -> RowView:
    """Return all sessions: who runs or waits first, in the order of the queue."""
    columns = (
        ViewColumn(name="user", ratio=2),
        ViewColumn(name="notebook", ratio=3),
        ViewColumn(name="state", ratio=4),
        *_place_columns(status),
        *_columns(SESSION),
    )
    return RowView(
        columns=columns, rows=tuple(_session_row(session, _place(session, status)) for session in status.sessions)
    )


def _columns(figures: Sequence[Figure]) -> list[ViewColumn]:
    return [ViewColumn(name=figure.name, width=figure.width) for figure in shown(figures, Place.TOP)]


def _cells(figures: Sequence[Figure], entry: SessionStatus | UserStatus) -> list[Text]:
    return [Text(figure.text(entry)) for figure in shown(figures, Place.TOP)]


def _ranks(figures: Sequence[Figure], entry: SessionStatus | UserStatus) -> list[tuple[int, float]]:
    return [_largest_first(figure.value(entry)) for figure in shown(figures, Place.TOP)]


def _place_columns(status: StatusDocument) -> tuple[ViewColumn, ...]:
    """Return the columns that say where something is, as far as there is more than one such place."""
    if not status.devices:
        return ()
    device = ViewColumn(name="device", ratio=2)
    return (ViewColumn(name="host", ratio=1), device) if status.has_hosts else (device,)


def _place(entry: SessionStatus | LaneStatus, status: StatusDocument) -> tuple[str, ...]:
    """Return where a session or lane is, for :func:`_place_columns`."""
    if not status.devices:
        return ()
    return (entry.host or "", device_on_host(entry)) if status.has_hosts else (entry.device or "",)


def _session_row(session: SessionStatus, place: tuple[str, ...]) -> ViewRow:
    name, state = session_name(session), session_state(session)
    order = queue_order(session)
    return ViewRow(
        key=session.id,
        cells=(
            cell(session.user, "bold"),
            Text(name),
            Text(state, STATE_STYLES.get(session.state, "")),
            *map(cell, place),
            *_cells(SESSION, session),
        ),
        ranks=(
            session.user.casefold(),
            name.casefold(),
            order[:2],
            *place,
            *_ranks(SESSION, session),
        ),
        place=(*order, session.id),
        session=session,
    )


def people_view(status: StatusDocument) -> RowView:
    """Return all users: who has most memory first."""
    columns = (ViewColumn(name="user", ratio=1), ViewColumn(name="sessions", width=8), *_columns(USER))
    numbers: dict[str, int] = {}
    for session in status.sessions:
        numbers[session.user] = numbers.get(session.user, 0) + 1
    return RowView(columns=columns, rows=tuple(_user_row(user, numbers.get(user.name, 0)) for user in status.users))


def _user_row(user: UserStatus, sessions: int) -> ViewRow:
    return ViewRow(
        key=user.name,
        cells=(cell(user.name, "bold"), Text(str(sessions)), *_cells(USER, user)),
        ranks=(user.name.casefold(), _largest_first(sessions), *_ranks(USER, user)),
        place=(_largest_first(MEMORY.value(user)), user.name),
    )


def lanes_view(status: StatusDocument) -> RowView:
    """Return the lanes of all devices: those in use first."""
    columns = (
        *_place_columns(status),
        ViewColumn(name="lane", width=5),
        ViewColumn(name="size", width=8),
        ViewColumn(name="running", ratio=3),
        ViewColumn(name="next in line", ratio=5),
    )
    names = {session.id: f"{safe_text(session.user)} {session_name(session)}" for session in status.sessions}
    return RowView(columns=columns, rows=tuple(_lane_row(lane, names, _place(lane, status)) for lane in status.lanes))


def _lane_row(lane: LaneStatus, names: dict[str, str], place: tuple[str, ...]) -> ViewRow:
    number = lane.id if lane.number is UNSET else lane.number
    holder = names.get(lane.holder, "?") if lane.holder else NOTHING
    queue = ", ".join(names.get(session, "?") for session in lane.queue) or NOTHING
    return ViewRow(
        key=str(lane.id),
        cells=(
            *map(cell, place),
            Text(str(number)),
            Text(format_bytes(lane.size_bytes)),
            Text(holder, "green"),
            Text(queue),
        ),
        ranks=(
            *place,
            number,
            _largest_first(lane.size_bytes),
            holder.casefold(),
            _largest_first(len(lane.queue)),
        ),
        place=(lane.holder is None, not lane.queue, lane.id),
    )


def session_words(session: SessionStatus) -> str:
    """Return in one line what a row has no room for."""
    parts = [
        safe_text(session.user),
        safe_text(session.notebook) if session.notebook else session_name(session),
        session_state(session),
        memory_by_kind(session),
        lingering_words(session),
        session.offload_note and safe_text(session.offload_note),
    ]
    return " · ".join(part for part in parts if part)


def devices_away(status: StatusDocument) -> Sequence[str]:
    """Return a sentence for each device whose executor does not answer."""
    return [
        f"{safe_text(entry.name)} is away: {safe_text(entry.message)}"
        for entry in status.by_device().values()
        if isinstance(entry, DeviceEntry)
    ]


def left_out_words(status: StatusDocument) -> str:
    """Return what the document of a large cluster leaves out, to be added to a line; empty: nothing."""
    return f" · {status.left_out.sentence(how='`status --about NAME`')}" if status.left_out else ""


def _largest_first(value: float | None) -> tuple[int, float]:
    return _LAST if value is None else (0, -value)
