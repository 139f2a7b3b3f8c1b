"""The status document as tables for a terminal: what `status` prints, and `demo` shows live.

Readable at 80 columns and without colour: colour only repeats what a word already says. Several devices are shown one
below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from msgspec import UNSET
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from sharedkernel.status.document import DeviceEntry, HostEntry, LaneStatus, SessionStatus, StatusDocument, UserStatus
from sharedkernel.status.figures import DEVICE, LEFT, SESSION, USER, Figure, Place, sentences, shown
from sharedkernel.status.text import (
    NOTHING,
    RUNNING,
    device_on_host,
    device_title,
    lingering_words,
    programs_words,
    safe_text,
    session_name,
    session_state,
)
from sharedkernel.units import format_bytes, format_seconds

#: colours of the states; they repeat what a word says
STATE_STYLES = {
    "running": "green",
    "preempting": "green",
    "queued": "yellow",
    "waiting": "yellow",
    "restoring": "yellow",
    "offloaded": "blue",
    "dead": "red",
}
#: sessions are shown in this order of states, then by place in the queue
_STATE_ORDER = ("running", "preempting", "queued", "waiting", "restoring", "ready", "idle", "offloaded")
_BAR_WIDTH, _SHORT_BAR_WIDTH = 30, 10


#: what a table has a row of
Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True)  # without slots, since `TableColumn[Entry](...)` is marked by typing
class TableColumn(Generic[Entry]):
    """A column: what it says of an entry, how wide it is, and what entries are sorted by."""

    name: str
    text: Callable[[Entry], object]
    #: part of the width that the numbers leave; 0: a number
    ratio: int = 0
    #: characters of a number, or of a text that is as wide as it is
    width: int = 0
    style: Callable[[Entry], str] = lambda entry: ""
    #: None: its text
    rank: Callable[[Entry], Any] | None = None

    def heading(self) -> Column:
        """Return an empty column."""
        if not self.ratio:
            return number(self.name, self.width)
        if self.width:
            return Column(self.name, min_width=self.width, no_wrap=True, overflow="ellipsis")
        return text(self.name, self.ratio)

    def cell(self, entry: Entry) -> Text:
        """Return what it says of *entry*."""
        return Text(safe_text(self.text(entry)), self.style(entry), justify="left" if self.ratio else "right")

    def ranked(self, entry: Entry) -> Any:
        """Return what *entry* is sorted by."""
        return str(self.text(entry)).casefold() if self.rank is None else self.rank(entry)


def status_view(status: StatusDocument) -> RenderableType:
    """Return the whole document: hosts, the devices, their lanes, everybody's sessions and what users have."""
    documents = status.by_device().values()
    users = filled(status.users, [USER_NAME, *figure_columns(USER, Place.STATUS)])
    parts: list[RenderableType] = [hosts_table(status.hosts or [])] if status.has_hosts else []
    for document in documents:
        if isinstance(document, DeviceEntry):
            parts.append(_away_view(document))
            continue
        sessions = sessions_table(document)
        parts += [device_view(document), lanes_table(document)]
        parts += [sessions] if len(documents) > 1 else [users, sessions]
    if len(documents) > 1:
        parts.append(users)
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def hosts_table(hosts: Sequence[HostEntry]) -> RenderableType:
    """Return one row per host: whether it answers, its place in a Ray cluster, devices, sessions and version."""
    columns: list[TableColumn[HostEntry]] = [
        TableColumn(name="host", ratio=2, text=lambda host: host.name, style=lambda host: "bold"),
        TableColumn(name="state", ratio=2, text=HostEntry.state_words),
        TableColumn(name="Ray", ratio=2, text=HostEntry.ray_words),
        TableColumn(name="devices", width=7, text=lambda host: host.num_devices),
        TableColumn(
            name="sessions", width=8, text=lambda host: NOTHING if host.num_sessions is None else host.num_sessions
        ),
        TableColumn(name="version", ratio=1, text=lambda host: host.version or NOTHING),
    ]
    return filled(hosts, columns)


def device_line(document: StatusDocument | DeviceEntry) -> Text:
    """Return what a device is and how full it is, in one line; or why nobody knows.

    Parameters
    ----------
    document
        As :meth:`StatusDocument.by_device` has it.
    """
    if isinstance(document, DeviceEntry):
        return _away_view(document)
    device = document.device
    parts = [f" {format_bytes(device.used_bytes)} of {format_bytes(device.capacity_bytes)}"]
    parts += sentences(DEVICE, Place.LINE, device)
    return Text.assemble(
        (device_title(device), "bold"),
        " ",
        memory_bar(device.used_bytes, device.capacity_bytes, _SHORT_BAR_WIDTH),
        " · ".join([*parts, f"policy {safe_text(device.policy)}"]),
    )


def device_view(status: StatusDocument) -> RenderableType:
    """Return what the device is and how full it is."""
    device = status.device
    capacity = device.capacity_bytes
    used = Text.assemble(
        "memory ",
        memory_bar(device.used_bytes, capacity),
        f" {format_bytes(device.used_bytes)} of {format_bytes(capacity)}",
        f" (reserve {format_bytes(device.reserve_bytes)})",
    )
    title = device_title(device)
    if title != safe_text(device.name):
        kind = f" · {safe_text(device.name)}" if status.devices else ""
    else:
        kind = f"{f' · {safe_text(device.description)}' if device.description else ''} · {safe_text(device.kind)}"
    name = Text.assemble(
        (title, "bold"),
        f"{kind} · policy {safe_text(device.policy)}",
        f" · quantum {format_seconds(device.quantum_seconds)}",
    )
    away = [amount for session in status.sessions if (amount := session.offloaded_bytes)]
    lines = [name, used]
    if away:
        sessions = "1 session" if len(away) == 1 else f"{len(away)} sessions"
        lines.append(Text(f"       {format_bytes(sum(away))} of {sessions} moved away from the device"))
    if device.memory_mode:  # of a GPU: how lanes, MPS and NVML are
        notes = (device.lanes_shared_reason, device.mps_note, device.nvml_note)
        lines += [Text(safe_text(note), style="dim") for note in notes if note]
    return Group(*lines)


def _away_view(device: DeviceEntry) -> Text:
    """Return why nobody knows anything of a device."""
    return Text.assemble((safe_text(device.name), "bold"), f" · away: {safe_text(device.message)}")


def memory_bar(used: float, whole: float, width: int = _BAR_WIDTH) -> Text:
    """Return a bar that is as full as a memory.

    Parameters
    ----------
    used, whole
        Bytes; an empty *whole* gives an empty bar.
    width
        Characters.
    """
    filled = round(width * min(max(used / whole, 0.0), 1.0)) if whole else 0
    return Text.assemble(("█" * filled, "cyan"), ("░" * (width - filled), "dim"))


def lanes_table(status: StatusDocument) -> RenderableType:
    """Return one row per lane of one device: its size, who runs in it, who is next."""
    if not status.lanes:
        return Text("No lanes: nobody is using the device.", style="dim")
    return filled(status.lanes, lane_columns(status))


def sessions_table(status: StatusDocument) -> RenderableType:
    """Return one row per session of one device: what it does, its memory, how far it has come, how long it needs."""
    if not status.sessions:
        return Text("No sessions.", style="dim")
    ordered = sorted(status.sessions, key=queue_order)
    left = [figure_column(LEFT)] if any(LEFT.value(session) is not None for session in ordered) else []
    table = filled(ordered, [OWNER, NOTEBOOK, *SESSION_COLUMNS, *left])
    return Group(table, *session_notes(ordered))


def session_notes(sessions: Iterable[SessionStatus]) -> list[Text]:
    """Return what rows of *sessions* have no room for, a line for each note."""
    return [
        Text(f"{safe_text(session.user)} {session_name(session)}: {safe_text(note)}", style="dim")
        for session in sessions
        for note in (programs_words(session), lingering_words(session), session.offload_note)
        if note
    ]


def queue_order(session: SessionStatus) -> tuple[int, float, str]:
    """Return by what sessions are ordered: those that do or want something first, and the queue as it is."""
    state = session.state
    rank = _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)
    if session.queue_position is not None:
        return _STATE_ORDER.index("queued"), session.queue_position, session.user
    return rank, 0, session.user


def _state_and_lane(session: SessionStatus) -> str:
    state = session_state(session)
    return f"{state}, lane {session.lane}" if session.state in RUNNING and session.lane is not None else state


def place_columns(*, has_devices: bool, has_hosts: bool) -> list[TableColumn[SessionStatus | LaneStatus]]:
    """Return the columns that say where a session or a lane is, as far as there is more than one such place."""
    column = TableColumn[SessionStatus | LaneStatus]
    host = column(name="host", ratio=1, text=lambda entry: entry.host or "")
    device = column(name="device", ratio=2, text=device_on_host if has_hosts else lambda entry: entry.device or "")
    return [host, device] if has_hosts else [device] if has_devices else []


def lane_columns(status: StatusDocument) -> list[TableColumn[LaneStatus]]:
    """Return the columns of lanes; the number of each is that of its own executor."""
    names = {session.id: f"{session.user} {session_name(session)}" for session in status.sessions}

    def number_of(lane: LaneStatus) -> int:
        return lane.id if lane.number is UNSET else lane.number

    def who(sessions: Sequence[str | None]) -> str:
        return ", ".join(names.get(session, "?") for session in sessions if session) or NOTHING

    return [
        TableColumn(name="lane", width=5, text=number_of, rank=number_of),
        TableColumn(
            name="size", width=8, text=lambda lane: format_bytes(lane.size_bytes), rank=lambda lane: -lane.size_bytes
        ),
        TableColumn(name="running", ratio=3, text=lambda lane: who([lane.holder]), style=lambda lane: "green"),
        TableColumn(
            name="next in line", ratio=5, text=lambda lane: who(lane.queue), rank=lambda lane: -len(lane.queue)
        ),
    ]


def figure_columns(figures: Sequence[Figure], place: Place) -> list[TableColumn[Any]]:
    """Return the columns of the figures that are shown in a place."""
    return [figure_column(figure) for figure in shown(figures, place)]


def figure_column(figure: Figure) -> TableColumn[Any]:
    """Return the column of a figure: the largest first, those without it last."""

    def rank(entry: object) -> tuple[int, float]:
        value = figure.value(entry)
        return (1, 0) if value is None else (0, -value)

    return TableColumn(name=figure.name, width=figure.width, text=figure.text, rank=rank)


def filled(entries: Iterable[Entry], columns: Sequence[TableColumn[Entry]]) -> Table:
    """Return a table with a row for each entry."""
    table = new_table(*(column.heading() for column in columns))
    for entry in entries:
        table.add_row(*(column.cell(entry) for column in columns))
    return table


def new_table(*columns: Column) -> Table:
    """Return an empty table in the house's look, as wide as the terminal."""
    return Table(*columns, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, expand=True)


def text(heading: str, ratio: int = 1) -> Column:
    """Return a column of text: it takes its part of the width that the numbers leave, and is cut where it must."""
    return Column(heading, ratio=ratio, no_wrap=True, overflow="ellipsis")


def number(heading: str, width: int) -> Column:
    """Return a column of numbers, aligned to the right; *width* is that of the longest number or of the heading."""
    return Column(heading, justify="right", min_width=width, no_wrap=True)


def cell(text: object, style: str = "") -> Text:
    """Return other people's text as a cell: no markup, nothing a terminal would obey."""
    return Text(safe_text(text), style=style)


USER_NAME = TableColumn[UserStatus](name="user", ratio=1, text=lambda user: user.name, style=lambda user: "bold")
OWNER = TableColumn[SessionStatus](name="user", ratio=2, text=lambda entry: entry.user, style=lambda entry: "bold")
NOTEBOOK = TableColumn[SessionStatus](name="notebook", ratio=3, text=session_name)
STATE = TableColumn[SessionStatus](
    name="state",
    ratio=4,
    text=session_state,
    style=lambda session: STATE_STYLES.get(session.state, ""),
    rank=lambda session: queue_order(session)[:2],
)
#: what `status` says of a session beside its name: state with lane or place, and figures
SESSION_COLUMNS = (replace(STATE, text=_state_and_lane, width=18), *figure_columns(SESSION, Place.STATUS))
