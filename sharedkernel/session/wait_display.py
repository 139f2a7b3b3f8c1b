"""The line in a waiting cell: why it waits, its place in the queue and for how long.

The line must leave no trace in the notebook, so that what is saved equals what a kernel without a queue would have
left. It is shown only in a cell that has no output yet, and ``clear_output`` removes it: then nothing else is cleared.
An output that comes while the line is shown, from a thread for example, is preceded by that ``clear_output``, and the
cell shows no further line. Waits in the middle of a cell's output show in the status bar and the panel only.

Any message of the cell counts as an output, also those of comms: one may open the context of an ``Output`` widget, in
which a ``clear_output`` would clear what the widget shows.

The line is a sentence and a bar, as plain text and as HTML. The bar shows one of three things: how much of the expected
wait is over, how far the place in the queue has fallen, or how many bytes are back. Where none is known there is no
bar: it would stand still for as long as the wait lasts. So it is with waits for memory, which nobody's turn ends but
somebody who frees it. What moves then is the time waited so far. A bar goes back only when the place does.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any
from uuid import uuid4

from jupyter_client.session import DELIM

from sharedkernel import protocol
from sharedkernel.status.text import safe_text
from sharedkernel.system.deferred_signals import signals_held
from sharedkernel.units import format_bytes, format_seconds

_REASONS = {
    "lane": "another session has the device",
    "memory": "device memory is full",
    "quota": "your quota is used up",
    "restore": "this notebook's memory was moved away while it was idle, and there is no room for it yet",
}
#: what a wait for an amount of memory is for
_NEEDS = {"memory": "needs", "restore": "bringing back this notebook's memory needs"}
#: shown by JupyterLab's extension alone (`labextension/src/askincell.ts`), which does what it says
_ASK_BUTTON = '<button type="button" class="sk-Button sk-AskForRoom" hidden>Ask for room</button>'
#: characters of a bar in plain text
_WIDTH = 24
#: pairs of seconds: a wait shorter than the first is rounded to a multiple of the second
_STEPS = ((10.0, 1), (60.0, 5), (600.0, 30), (math.inf, 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLine:
    """A sentence, and a bar if there is something to show in it."""

    sentence: str
    #: what the bar shows, for those who cannot see it
    label: str = ""
    #: how far it has come, from 0 to 1; None: nobody can tell, and there is none
    fraction: float | None = None
    #: whether others could be asked to make room
    can_ask: bool = False

    def data(self) -> dict[str, str]:
        """Return it as the data of a display message, by MIME type."""
        ask = f" {_ASK_BUTTON}" if self.can_ask else ""
        plain, html = f"⏳ {self.sentence}", f"<div>⏳ {escape(self.sentence)}{ask}</div>"
        if self.fraction is not None:
            percent = int(100 * self.fraction)
            filled = _WIDTH * percent // 100
            plain += f"\n[{'█' * filled}{'·' * (_WIDTH - filled)}] {percent} %"
            html += (
                f'<progress max="100" value="{percent}" aria-label="{escape(self.label)}" '
                f'style="width: 24em; max-width: 100%">{percent} %</progress>'
            )
        return {"text/plain": plain, "text/html": html}


class Wait:
    """One wait, as far as is known of it.

    Parameters
    ----------
    now
        When it began, seconds on a clock of the caller's.
    host
        Name of the host whose device it is for, told where there are several; empty: there is one.
    """

    def __init__(self, now: float, host: str = "") -> None:
        self._began = now
        #: how each sentence begins
        self._waiting = f"Waiting on {safe_text(host)}" if host else "Waiting"
        self._latest: protocol.Waiting | None = None
        self._told_at = now
        #: the worst place it had in the queue
        self._from_place = 0
        #: where the bar stands
        self._fraction = 0.0

    def take(self, message: protocol.Waiting, now: float) -> None:
        """Take in what the executor says of it.

        Parameters
        ----------
        message
            The executor's.
        now
            Seconds on the clock of :meth:`line`.
        """
        before = self._latest.position if self._latest is not None else None
        if before is not None and message.position is not None and message.position > before:
            self._fraction = 0.0
        self._latest, self._told_at = message, now
        self._from_place = max(self._from_place, message.position or 0)

    def line(self, now: float, *, has_executor: bool = True) -> WaitLine:
        """Return what to show of it.

        Parameters
        ----------
        now
            Seconds.
        has_executor
            Whether there is an executor to wait for.
        """
        if not has_executor:
            return WaitLine(
                sentence=f"{self._waiting}: the executor, which shares the device, is away; "
                "this cell goes on when it is back."
            )
        told = self._latest
        if told is None:
            return WaitLine(sentence=f"{self._waiting} for the shared device.")
        if told.reason in _NEEDS and told.needed_bytes is not None and told.free_bytes is not None:
            return WaitLine(sentence=self._memory_sentence(told, now), can_ask=told.idle_of is not None)
        holder = f" ({safe_text(told.holder)})" if told.holder else ""
        place = f", place {told.position} in the queue" if told.position else ""
        sentence = f"{self._waiting}: {_REASONS.get(told.reason) or safe_text(told.reason)}{holder}{place}."
        elapsed = now - self._began
        if told.expected_seconds is not None and (left := told.expected_seconds - (now - self._told_at)) > 0:
            return WaitLine(
                sentence=f"{sentence} Expected wait: about {_about(left)} more.",
                label="Part of the expected wait that is over",
                fraction=self._move_to(elapsed / (elapsed + left)),
            )
        if elapsed >= 1:
            sentence += f" {_about(elapsed)} so far."
        if told.expected_seconds is not None:
            return WaitLine(sentence=f"{sentence} It takes longer than expected.")
        if told.reason != "lane" or not told.position or self._from_place == 1:
            return WaitLine(sentence=sentence)
        return WaitLine(
            sentence=sentence,
            label=f"Way in the queue from place {self._from_place}",
            fraction=self._move_to((self._from_place - told.position) / self._from_place),
        )

    def _memory_sentence(self, told: protocol.Waiting, now: float) -> str:
        """Return how much memory is needed and free, and who holds or makes room, or for how long it was waited."""
        needed, free = format_bytes(told.needed_bytes or 0), format_bytes(told.free_bytes or 0)
        sentence = f"{self._waiting}: {_NEEDS[told.reason]} {needed}, {free} free."
        left = None if told.expected_seconds is None else told.expected_seconds - (now - self._told_at)
        when = f"in about {_about(left)}" if left is not None and left > 0 else "soon"
        if told.idle_of is not None and told.idle_bytes is not None:
            sentence += f" {_capital(told.idle_of)} holds {format_bytes(told.idle_bytes)}"
            if told.room_from == told.idle_of:
                return f"{sentence} and makes room {when}."
            sentence += "."
        if told.room_from is not None:
            return f"{sentence} {_capital(told.room_from)} makes room {when}."
        if left is not None and left > 0:
            return f"{sentence} Expected wait: about {_about(left)} more."
        elapsed = now - self._began
        return f"{sentence} {_about(elapsed)} so far." if elapsed >= 1 else sentence

    def _move_to(self, fraction: float) -> float:
        self._fraction = max(self._fraction, fraction)
        return self._fraction


def restore_line(done: int, total: int) -> WaitLine:
    """Return what to show while *done* of *total* bytes are back."""
    return WaitLine(
        sentence=f"Restoring this notebook's memory: {format_bytes(done)} of {format_bytes(total)}.",
        label="Part of this notebook's memory that is back",
        fraction=done / total if total else None,
    )


def _capital(words: str) -> str:
    text = safe_text(words)
    return text[:1].upper() + text[1:]


def _about(seconds: float) -> str:
    """Return a rounded duration: an expectation is not exact, and a coarse one changes less often."""
    step = next(step for end, step in _STEPS if seconds < end)
    told = format_seconds(max(1, step * round(seconds / step))).replace(".0 s", " s")
    return told.removesuffix(" 0 s").removesuffix(" 0 m")


#: a wait shorter than this is not worth a line in the notebook, in seconds
NOTICE_AFTER = 2.0
#: seconds between two changes of what the line says about progress
REFRESH_INTERVAL = 0.5

#: published messages of a cell that are no output
_NO_OUTPUT = ("status", "execute_input")
#: seconds for which an output waits at most for a line that is being sent
_LOCK_PATIENCE = 1.0


class WaitDisplay:
    """Shows waits of one kernel's cells as a display that is cleared when the wait ends.

    Parameters
    ----------
    kernel
        The ipykernel whose cells wait (made in its main thread).
    out_of_turn
        Returns a context in which what this thread publishes does not wait for earlier outputs.
    """

    def __init__(self, kernel: Any, out_of_turn: Callable[[], AbstractContextManager[None]]) -> None:
        self._kernel = kernel
        self._out_of_turn = out_of_turn
        self._pid = os.getpid()
        # Reentrant: the line itself passes the lookout for outputs.
        self._lock = threading.RLock()
        #: name of this session's host, where there are several
        self.host = ""
        self._wait = self._new_wait()
        #: ids of the requests of cells that run and have shown nothing
        self._without_output: set[str] = set()
        #: the request of the cell that shows the line; None: no cell does
        self._parent: dict[str, Any] | None = None
        self._display_id = ""
        self._sent: dict[str, str] = {}
        #: the thread that sends the line at the moment
        self._sender: int | None = None

    # --- what cells show besides --------------------------------------------------------------------------------------

    def attend(self, app: Any) -> None:
        """Look from now on for outputs among what the kernel application *app* publishes."""
        outputs = app.iopub_thread
        send = outputs.send_multipart

        def look_and_send(frames: Sequence[Any], *args: Any, **kwargs: Any) -> None:
            if self._without_output:
                self._look(frames)
            send(frames, *args, **kwargs)

        outputs.send_multipart = look_and_send

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Let the cell that runs in this thread show a line until its first output."""
        request = _id(self._kernel.get_parent())
        self._without_output.add(request)
        try:
            yield
        finally:
            self._without_output.discard(request)

    def _look(self, frames: Sequence[Any]) -> None:
        """Remove the line before the first output of its cell."""
        if self._sender == threading.get_ident() or os.getpid() != self._pid:
            return
        cell = self._cell_of_output(frames)
        if cell not in self._without_output:
            return
        with signals_held():
            # A flood may block who sends the line until this thread, which sends outputs, takes them.
            is_locked = self._lock.acquire(timeout=_LOCK_PATIENCE)
            try:
                if is_locked and self._parent is not None and _id(self._parent) == cell:
                    self._clear()
            finally:
                # Not before it is cleared: until then outputs of other threads wait for the lock.
                self._without_output.discard(cell)
                if is_locked:
                    self._lock.release()

    def _cell_of_output(self, frames: Sequence[Any]) -> str | None:
        """Return the id of the request that a published message is an output of; None if it is no output."""
        start = next((place for place, frame in enumerate(frames) if bytes(frame) == DELIM), len(frames)) + 2
        if len(frames) < start + 2:
            return None
        unpack = self._kernel.session.unpack
        is_output = unpack(bytes(frames[start])).get("msg_type") not in _NO_OUTPUT
        return unpack(bytes(frames[start + 1])).get("msg_id") if is_output else None

    # --- the line -----------------------------------------------------------------------------------------------------

    @property
    def is_shown(self) -> bool:
        """Whether the line is in the cell now."""
        return self._parent is not None

    def wait_begins(self) -> None:
        """Record that a wait begins, before the executor has sent anything about it."""
        with self._lock:
            self._wait = self._new_wait()

    def show(self, *, has_executor: bool = True) -> None:
        """Show the line in the cell that runs in this thread, if that has no output yet, with its bar moved on.

        Parameters
        ----------
        has_executor
            Whether there is an executor to wait for; the line says so if there is none.
        """
        with self._lock:
            self._show(self._wait.line(time.monotonic(), has_executor=has_executor))

    def update(self, message: protocol.Waiting) -> None:
        """Change what it says to the executor's *message* (any thread), now or once it is shown."""
        with self._lock:
            now = time.monotonic()
            self._wait.take(message, now)
            self._change(self._wait.line(now))

    def show_restored(self, done: int, total: int) -> None:
        """Show that *done* of *total* bytes are back."""
        with self._lock:
            self._show(restore_line(done, total))

    def end(self) -> None:
        """Remove the line, if it is shown."""
        with self._lock:
            self._wait = self._new_wait()
            if self._parent is not None:
                self._clear()

    def _new_wait(self) -> Wait:
        return Wait(time.monotonic(), self.host)

    def _show(self, line: WaitLine) -> None:
        if self._parent is not None:
            self._change(line)
            return
        parent = self._kernel.get_parent()
        if _id(parent) in self._without_output:
            self._parent, self._display_id, self._sent = parent, uuid4().hex, line.data()
            self._send_data("display_data")

    def _change(self, line: WaitLine) -> None:
        """Say something else, where the line is shown."""
        if self._parent is not None and (data := line.data()) != self._sent:
            self._sent = data
            self._send_data("update_display_data")

    def _clear(self) -> None:
        self._send("clear_output", {"wait": False})
        self._parent = None

    def _send_data(self, kind: str) -> None:
        self._send(kind, {"data": self._sent, "metadata": {}, "transient": {"display_id": self._display_id}})

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        """Publish a message of the cell that shows the line, with the lock held."""
        kernel = self._kernel
        ident = f"kernel.{kernel.ident}.{kind}".encode()
        self._sender = threading.get_ident()
        try:
            with self._out_of_turn():  # the thread that receives the executor's messages waits for the lock
                kernel.session.send(kernel.iopub_socket, kind, content, parent=self._parent, ident=ident)
        finally:
            self._sender = None


def _id(request: dict[str, Any]) -> str:
    return str(request.get("header", {}).get("msg_id", ""))
