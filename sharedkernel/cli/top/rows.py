"""The rows of ``sharedkernel top`` from a status document: one view each of sessions, people and lanes.

A view has rows that can be sorted by each column and filtered by their text. No terminal is needed to make one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from sharedkernel.status.document import DeviceEntry, SessionStatus, StatusDocument, UserStatus
from sharedkernel.status.figures import MEMORY, SESSION, USER, Place, memory_by_kind
from sharedkernel.status.tables import (
    NOTEBOOK,
    OWNER,
    STATE,
    USER_NAME,
    TableColumn,
    figure_column,
    figure_columns,
    lane_columns,
    place_columns,
    queue_order,
)
from sharedkernel.status.text import lingering_words, programs_words, safe_text, session_name, session_state


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

    columns: Sequence[TableColumn[Any]]
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
    columns = [OWNER, NOTEBOOK, STATE, *_places(status), *figure_columns(SESSION, Place.TOP)]
    return _view(columns, status.sessions, "id", lambda session: (*queue_order(session), session.id))


def people_view(status: StatusDocument) -> RowView:
    """Return all users: who has most memory first."""
    numbers = Counter(session.user for session in status.sessions)
    sessions: TableColumn[UserStatus] = TableColumn(
        name="sessions", width=8, text=lambda user: numbers[user.name], rank=lambda user: -numbers[user.name]
    )
    rank = figure_column(MEMORY).ranked
    columns = [USER_NAME, sessions, *figure_columns(USER, Place.TOP)]
    return _view(columns, status.users, "name", lambda user: (rank(user), user.name))


def lanes_view(status: StatusDocument) -> RowView:
    """Return the lanes of all devices: those in use first."""
    columns = [*_places(status), *lane_columns(status)]
    return _view(columns, status.lanes, "id", lambda lane: (lane.holder is None, not lane.queue, lane.id))


def _places(status: StatusDocument) -> list[TableColumn[Any]]:
    return place_columns(has_devices=bool(status.devices), has_hosts=status.has_hosts)


def _view(
    columns: Sequence[TableColumn[Any]], entries: Iterable[Any], key: str, place: Callable[[Any], object]
) -> RowView:
    """Return a view of *entries*, which their field *key* names."""
    rows = [
        ViewRow(
            key=str(getattr(entry, key)),
            cells=tuple(column.cell(entry) for column in columns),
            ranks=tuple(column.ranked(entry) for column in columns),
            place=place(entry),
            session=entry if isinstance(entry, SessionStatus) else None,
        )
        for entry in entries
    ]
    return RowView(columns=columns, rows=tuple(rows))


def session_words(session: SessionStatus) -> str:
    """Return in one line what a row has no room for."""
    parts = [
        safe_text(session.user),
        safe_text(session.notebook) if session.notebook else session_name(session),
        session_state(session),
        memory_by_kind(session),
        programs_words(session),
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
