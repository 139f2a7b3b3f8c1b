"""The screen of ``sharedkernel top``: devices above, one table below, live.

One request is on its way at a time, and one act on a session; both run in threads of their own that end with the
process, so that quitting never waits for a gateway. A gateway that goes away is said above the last figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from sharedkernel.cli.top.rows import (
    RowView,
    ViewRow,
    devices_away,
    lanes_view,
    people_view,
    session_words,
    sessions_view,
)
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import SharedKernelError
from sharedkernel.status.document import SessionStatus, StatusDocument
from sharedkernel.status.tables import device_line
from sharedkernel.status.text import RUNNING, safe_text, session_name
from sharedkernel.units import format_seconds

#: seconds between an answer and the next question to the gateway
_INTERVAL = 0.5
#: seconds that an answer may take before the gateway counts as away
_ANSWER_TIMEOUT = 2.0

#: characters that the scroll bar takes
_SCROLLBAR = 1

_VIEWS: dict[str, Callable[[StatusDocument], RowView]] = {
    "sessions": sessions_view,
    "people": people_view,
    "lanes": lanes_view,
}


class RowTable(DataTable[Text]):
    """A table of rows: Home and End lead to the first and the last one."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class TopScreen(App[None]):
    """Shows the status document and asks for the next, until the user has seen enough.

    Parameters
    ----------
    credentials
        The gateway and the token.
    status
        Its first answer.
    """

    ENABLE_COMMAND_PALETTE = False
    # The devices take what they need, and scroll beyond six; the table has the rest.
    CSS = """
    #devices { height: auto; max-height: 6; }
    #filter { display: none; border: none; height: 1; padding: 0; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; }
    #chosen { height: 2; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("1", "show('sessions')", "sessions"),
        Binding("2", "show('people')", "people"),
        Binding("3", "show('lanes')", "lanes"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        # before the table sees what is typed next
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("escape", "leave_filter", show=False),
        Binding("o", "offload", "offload"),
        Binding("x", "stop", "stop"),
    ]

    def __init__(self, credentials: Credentials, status: StatusDocument) -> None:
        super().__init__()
        self._credentials = credentials
        self._status = status
        self._answered_at = time.monotonic()
        self._trouble: str | None = None
        self._shown = "sessions"
        #: by which column each view is sorted; None: in its own order
        self._sorted_by: dict[str, str | None] = dict.fromkeys(_VIEWS)
        self._reversed = False
        self._rows: list[ViewRow] = []
        #: headings and widths that the table has
        self._headings: list[tuple[Text, int]] = []
        #: what is being done to a session; None: nothing
        self._act: str | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts, from top to bottom."""
        with VerticalScroll(id="devices", can_focus=False):
            yield Static(id="devices-text", markup=False)
        yield Static(id="line", markup=False)
        yield Input(id="filter", placeholder="words that a row must have; Enter keeps them, Escape shows all")
        # A space between columns is part of their widths.
        yield RowTable(cursor_type="row", cell_padding=0)
        yield Static(id="chosen", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Use the terminal's own colours, and begin to ask."""
        self.theme = "ansi-dark"
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):  # on Windows
                loop.add_signal_handler(number, self.exit)
        self._table.focus()
        self._render_status()
        self._ask()

    def on_resize(self) -> None:
        """Divide the width anew."""
        self.call_after_refresh(self._render_status)

    # --- the gateway --------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        # Not a pool's thread: the process would wait for those when it ends.
        threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        try:
            status = fetch_status(self._credentials, timeout=_ANSWER_TIMEOUT)
            self.call_later(self._show_answer, status, None)
        except SharedKernelError as error:
            self.call_later(self._show_answer, None, str(error))

    def _show_answer(self, status: StatusDocument | None, trouble: str | None) -> None:
        """Show the gateway's answer, or why there is none, and ask again a little later."""
        self._trouble = trouble
        if status is not None:
            self._status, self._answered_at = status, time.monotonic()
        self._render_status()
        self.set_timer(_INTERVAL, self._ask)

    def _do(self, verb: str, done: str, session: SessionStatus, act: Callable[[Gateway, str], None]) -> None:
        who = f"{session_name(session)} of {safe_text(session.user)}"
        self._act = f"{verb} {who}"

        def run() -> None:
            try:
                act(Gateway(self._credentials), session.kernel_id or "")
                self.call_later(self._end_act, f"{done} {who}", "information")
            except SharedKernelError as error:
                self.call_later(self._end_act, f"could not {verb} {who}: {safe_text(error)}", "error")

        threading.Thread(target=run, daemon=True).start()

    def _end_act(self, sentence: str, severity: SeverityLevel) -> None:
        """Say what came of an act on a session."""
        self._act = None
        self.notify(sentence, severity=severity, markup=False)

    # --- what is shown ------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> RowTable:
        return self.screen_stack[0].query_one(RowTable)

    def _render_status(self, *, from_top: bool = False) -> None:
        """Show the last document.

        Parameters
        ----------
        from_top
            Whether the first row is selected then, instead of the one that was.
        """
        main = self.screen_stack[0]
        lines = [device_line(document) for document in self._status.by_device().values()]
        main.query_one("#devices-text", Static).update(Group(*lines))
        view = _VIEWS[self._shown](self._status)
        words = main.query_one("#filter", Input).value
        column = self._sorted_by[self._shown]
        rows = view.arranged(words=words, column=column, reverse=self._reversed)
        main.query_one("#line", Static).update(self._line(len(rows), len(view.rows), words))
        self._fill(self._headings_of(view, column), rows, from_top)
        self._show_chosen()

    def _headings_of(self, view: RowView, sorted_by: str | None) -> list[tuple[Text, int]]:
        arrow = "▲" if self._reversed else "▼"
        found = []
        for column, width in zip(view.columns, view.widths(self.size.width - _SCROLLBAR), strict=True):
            name = f"{column.name}{arrow}" if column.name == sorted_by else column.name
            found.append((Text(name, style="bold", justify="left" if column.ratio else "right"), width))
        return found

    def _fill(self, headings: list[tuple[Text, int]], rows: list[ViewRow], from_top: bool) -> None:
        """Show *rows*: only what has changed, and the selected row stays the selected one, wherever it moves to."""
        table, chosen, before = self._table, self._chosen, self._rows
        self._rows = rows
        texts = [[_fitted(text, width) for text, (_, width) in zip(row.cells, headings, strict=True)] for row in rows]
        if headings == self._headings and [row.key for row in rows] == [row.key for row in before]:
            for row, old, new in zip(rows, before, texts, strict=True):
                if row.cells != old.cells:
                    for number, text in enumerate(new):
                        table.update_cell(row.key, str(number), text)
            return
        scroll = table.scroll_y
        table.clear(columns=True)
        for number, (heading, width) in enumerate(headings):
            table.add_column(_fitted(heading, width), width=width + 1, key=str(number))
        self._headings = headings
        for row, new in zip(rows, texts, strict=True):
            table.add_row(*new, key=row.key)
        place = 0
        if chosen is not None and not from_top:
            place = next((number for number, row in enumerate(rows) if row.key == chosen.key), 0)
            table.scroll_y = scroll
        table.move_cursor(row=place)

    def _line(self, num_shown: int, num_all: int, words: str) -> Text:
        """Return the line above the table: what it shows, or why it stands still."""
        if self._trouble is not None:
            age = format_seconds(time.monotonic() - self._answered_at)
            return Text(f"{safe_text(self._trouble)} The figures are {age} old; trying again.", style="bold red")
        away = devices_away(self._status)
        if away:
            return Text(" ".join(away), style="bold red")
        amount = f"{num_shown} of {num_all}" if words else str(num_all)
        what = f"{amount} {self._shown}" + (f' with "{safe_text(words)}"' if words else "")
        running = sum(session.state in RUNNING for session in self._status.sessions)
        waiting = sum(session.waiting_for is not None for session in self._status.sessions)
        left_out = self._status.left_out
        more = f" · {left_out.sentence(how='`status --about NAME`')}" if left_out else ""
        return Text(f"{what} · {running} running, {waiting} waiting{more}", style="dim")

    @property
    def _chosen(self) -> ViewRow | None:
        row = self._table.cursor_row
        return self._rows[row] if 0 <= row < len(self._rows) else None

    def _show_chosen(self) -> None:
        chosen = self._chosen
        session = None if chosen is None else chosen.session
        words = "" if session is None else session_words(session)
        self.screen_stack[0].query_one("#chosen", Static).update(Text(words))

    def on_data_table_row_highlighted(self) -> None:
        """Show the selected session in full."""
        self._show_chosen()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the heading that was clicked; by it again: the other way round."""
        name = _VIEWS[self._shown](self._status).columns[event.column_index].name
        self._reversed = self._sorted_by[self._shown] == name and not self._reversed
        self._sorted_by[self._shown] = name
        self._render_status(from_top=True)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def action_show(self, view: str) -> None:
        """Show another view."""
        self._shown, self._reversed = view, False
        self._render_status(from_top=True)

    def action_sort(self) -> None:
        """Sort by the next column; after the last, in the view's own order."""
        names: list[str | None] = [None, *(column.name for column in _VIEWS[self._shown](self._status).columns)]
        before = self._sorted_by[self._shown]
        place = names.index(before) if before in names else 0
        self._sorted_by[self._shown] = names[(place + 1) % len(names)]
        self._reversed = False
        self._render_status(from_top=True)

    def action_reverse(self) -> None:
        """Show the last row first."""
        self._reversed = not self._reversed
        self._render_status(from_top=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key may act now: among words to filter by a slash is a slash."""
        return action != "filter" or not isinstance(self.focused, Input)

    def action_filter(self) -> None:
        """Ask for words to filter by."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)

    def action_leave_filter(self) -> None:
        """Show all rows again."""
        line = self.query_one("#filter", Input)
        line.value = ""
        line.display = False
        self.set_focus(self._table)

    def on_input_changed(self) -> None:
        """Filter while words are typed."""
        self._render_status(from_top=True)

    def on_input_submitted(self) -> None:
        """Keep the words and go back to the table."""
        self._table.focus()

    def action_offload(self) -> None:
        """Offload the selected session, after a question."""
        consequence = "Its memory leaves the device; its next cell brings it back."
        self._ask_first("offload", "offloaded", consequence, lambda gateway, session: gateway.act(session, "offload"))

    def action_stop(self) -> None:
        """Stop the selected session, after a question."""
        consequence = "Its user can bring it back with `%shared attach` for as long as their quota lets it linger."
        self._ask_first("stop", "stopped", consequence, Gateway.end)

    def _ask_first(self, verb: str, done: str, consequence: str, act: Callable[[Gateway, str], None]) -> None:
        chosen = self._chosen
        session = None if chosen is None else chosen.session
        if session is None:
            self.notify(f"select a session to {verb}; 1 shows the sessions.", severity="warning")
        elif not session.kernel_id:
            name = safe_text(session.user)
            self.notify(f"only {name} or an admin can {verb} it.", severity="warning", markup=False)
        elif self._act is not None:
            self.notify(f"wait: still busy to {self._act}.", severity="warning", markup=False)
        else:
            text = f"{verb.capitalize()} {session_name(session)} of {safe_text(session.user)}?"

            def answered(yes: bool | None) -> None:
                if yes:
                    self._do(verb, done, session, act)

            self.push_screen(Question(text, consequence), answered)


def _fitted(text: Text, width: int) -> Text:
    """Return *text* in *width* characters and a space: cut with an ellipsis, numbers to the right."""
    fitted = text.copy()
    fitted.truncate(width, overflow="ellipsis")
    fitted.align("right" if text.justify == "right" else "left", width)
    fitted.justify = None  # aligned to the right once more, it would lose the space
    fitted.pad_right(1)
    return fitted


class Question(ModalScreen[bool]):
    """Asks yes or no before something is done to a session; any other key than y leaves things as they are.

    Parameters
    ----------
    question
        What is asked.
    consequence
        What follows from yes.
    """

    CSS = """
    Question { align: center middle; }
    Question Vertical { width: 64; max-width: 100%; height: auto; border: round $primary; padding: 0 1; }
    Question Static { height: auto; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        """Yield the box."""
        with Vertical():
            # As rich text, which nothing in a notebook's name can change.
            yield Static(Text(self._question, style="bold"))
            yield Static(Text(self._consequence))
            yield Static(Text("y: yes   n: no"))

    def action_answer(self, yes: bool) -> None:
        """Close the box."""
        self.dismiss(yes)
