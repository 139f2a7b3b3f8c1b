"""The wait line of a cell: a sentence and a bar, as plain text and as HTML, and how far the bar has come.

A bar shows one of three things: how much of the expected wait is over, how far the place in the queue has fallen, or
how many bytes are back. Where none is known there is no bar: it would stand still for as long as the wait lasts. So it
is with waits for memory, which nobody's turn ends but somebody who frees it. What moves then is the time waited so far.
A bar goes back only when the place does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from sharedkernel import protocol
from sharedkernel.status.text import safe_text
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
