"""The status document as tables for a terminal: what `status` prints, and `demo` shows live.

Readable at 80 columns and without colour: colour only repeats what a word already says. Several devices are shown one
below the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from sharedkernel.status.document import DeviceEntry, SessionStatus, StatusDocument
from sharedkernel.status.figures import DEVICE, LEFT, SESSION, USER, Figure, Place, sentences, shown
from sharedkernel.status.hosts import HostEntry
from sharedkernel.status.text import (
    NOTHING,
    RUNNING,
    device_title,
    lingering_words,
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


def status_view(status: StatusDocument) -> RenderableType:
    """Return the whole document: hosts, the devices, their lanes, everybody's sessions and what users have."""
    documents = status.by_device().values()
    users = users_table(status)
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
    table = new_table(
        text("host", 2), text("state", 2), text("Ray", 2), number("devices", 7), number("sessions", 8), text("version")
    )
    for host in hosts:
        table.add_row(
            cell(host.name, "bold"),
            cell(host.state_words()),
            cell(host.ray_words()),
            str(host.num_devices),
            NOTHING if host.num_sessions is None else str(host.num_sessions),
            cell(host.version or NOTHING),
        )
    return table


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
    if not away:
        return Group(name, used)
    sessions = "1 session" if len(away) == 1 else f"{len(away)} sessions"
    return Group(name, used, Text(f"       {format_bytes(sum(away))} of {sessions} moved away from the device"))


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
    names = {session.id: f"{session.user} {session_name(session)}" for session in status.sessions}
    table = new_table(number("lane", 4), number("size", 8), text("running"), text("next in line"))
    for lane in status.lanes:
        queue = [names.get(session, "?") for session in lane.queue]
        table.add_row(
            cell(lane.id),
            format_bytes(lane.size_bytes),
            cell(names.get(lane.holder, "?") if lane.holder else NOTHING, "green"),
            cell(", ".join(queue) or NOTHING),
        )
    return table


def users_table(status: StatusDocument) -> RenderableType:
    """Return one row per user: share, memory by kind against the quota, device time and waits."""
    figures = shown(USER, Place.STATUS)
    table = new_table(text("user"), *map(figure_column, figures))
    for user in status.users:
        table.add_row(cell(user.name, "bold"), *(figure.text(user) for figure in figures))
    return table


def sessions_table(status: StatusDocument) -> RenderableType:
    """Return one row per session of one device: what it does, its memory, how far it has come, how long it needs."""
    if not status.sessions:
        return Text("No sessions.", style="dim")
    ordered = sorted(status.sessions, key=queue_order)
    left = [LEFT] if any(LEFT.value(session) is not None for session in ordered) else []
    table = new_table(text("user", 2), text("notebook", 3), *SESSION_COLUMNS, *map(figure_column, left))
    for session in ordered:
        cells = [*session_cells(session), *(figure.text(session) for figure in left)]
        table.add_row(cell(session.user, "bold"), cell(session_name(session)), *cells)
    notes = [
        Text(f"{safe_text(session.user)} {session_name(session)}: {safe_text(note)}", style="dim")
        for session in ordered
        for note in (lingering_words(session), session.offload_note)
        if note
    ]
    return Group(table, *notes)


def queue_order(session: SessionStatus) -> tuple[int, float, str]:
    """Return by what sessions are ordered: those that do or want something first, and the queue as it is."""
    state = session.state
    rank = _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)
    if session.queue_position is not None:
        return _STATE_ORDER.index("queued"), session.queue_position, session.user
    return rank, 0, session.user


def session_cells(session: SessionStatus) -> list[RenderableType]:
    """Return a session's cells for :data:`SESSION_COLUMNS`: state with lane or place, and its figures."""
    state = session_state(session)
    if session.state in RUNNING and session.lane is not None:
        state = f"{state}, lane {session.lane}"
    figures = (figure.text(session) for figure in shown(SESSION, Place.STATUS))
    return [cell(state, STATE_STYLES.get(session.state, "")), *figures]


def new_table(*columns: Column) -> Table:
    """Return an empty table in the house's look, as wide as the terminal."""
    # Copies, since a column collects its cells: a shared one would show those of the table before.
    fresh = (column.copy() for column in columns)
    return Table(*fresh, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, expand=True)


def text(heading: str, ratio: int = 1) -> Column:
    """Return a column of text: it takes its part of the width that the numbers leave, and is cut where it must."""
    return Column(heading, ratio=ratio, no_wrap=True, overflow="ellipsis")


def number(heading: str, width: int) -> Column:
    """Return a column of numbers, aligned to the right; *width* is that of the longest number or of the heading."""
    return Column(heading, justify="right", min_width=width, no_wrap=True)


def figure_column(figure: Figure) -> Column:
    """Return the column of a figure."""
    return number(figure.name, figure.width)


#: the columns of :func:`session_cells`
SESSION_COLUMNS = (
    Column("state", min_width=18, no_wrap=True, overflow="ellipsis"),
    *map(figure_column, shown(SESSION, Place.STATUS)),
)


def cell(text: object, style: str = "") -> Text:
    """Return other people's text as a cell: no markup, nothing a terminal would obey."""
    return Text(safe_text(text), style=style)
