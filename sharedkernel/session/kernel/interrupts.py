"""Interrupts: they end the user's work in the main thread, and no other.

ipykernel raises an interrupt wherever it finds the main thread while a request is handled. Around a cell's own lines,
from what is done before its first one to what is done after its last, that ends the request without a reply, and its
client waits for one for ever; or it leaves a lock behind for which another thread waits for ever. So interrupts are
noted there, and raised only where the user's code runs or is waited for: one that came just before ends that at once;
one that comes after has nothing left to end. A handler that the user's code sets is there wherever it runs, to the end
of its request, as in any ipykernel.

How the session's own changes are kept from being torn apart, also within the user's code, is the matter of
:mod:`sharedkernel.system.deferred_signals`.
"""

from __future__ import annotations

import signal
import threading

# Those of `signal` look each handler up among the enumerated ones, which takes ten times as long, twenty times a cell.
from _signal import getsignal
from _signal import signal as set_handler
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """The interrupts of a kernel's main thread (made there); does nothing in other threads."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._noted = False
        #: how SIGINT is handled where the user's code runs
        self._theirs: Any = signal.default_int_handler
        #: how it was handled before each request that is being handled, and how in the code of the one around it: a
        #: cell may have another one handled in its middle
        self._before: list[tuple[Any, Any]] = []

    @property
    def _is_handling(self) -> bool:
        return bool(self._before) and threading.get_ident() == self._main

    def begin(self) -> None:
        """Note them from now on: a request is being handled."""
        if threading.get_ident() == self._main:
            before = set_handler(signal.SIGINT, self._note)
            self._before.append((before, self._theirs))
            self._theirs = signal.default_int_handler

    def end(self) -> None:
        """Handle them as before: the request has been handled, and what was noted has nothing left to end."""
        if self._is_handling:
            self._noted = self._noted and len(self._before) > 1
            before, self._theirs = self._before.pop()
            set_handler(signal.SIGINT, before)

    def let_through(self) -> LetThrough:
        """Return a context in which they are raised, one that was noted at its beginning."""
        return LetThrough(self.open, self.hold)

    def let_into_code(self) -> LetThrough:
        """Return a context in which the user's handler meets them: for code whose errors of any kind are shown."""
        return LetThrough(self._open_for_code, self.hold)

    def let_into_hooks(self) -> LetThrough:
        """Return a context in which they are raised, and noted: IPython goes on after hooks, and the cell is to end."""
        return LetThrough(self._open_for_hooks, self.hold)

    def hold(self) -> None:
        """Note them again, wherever :meth:`let_through` was left."""
        if not self._is_handling:
            return
        handler = getsignal(signal.SIGINT)
        if handler is None:  # not set from Python, and could not be set again
            return
        if handler not in (self._note, self._note_and_raise, self._raise):
            self._theirs = handler
        set_handler(signal.SIGINT, self._note)

    def open(self) -> bool:
        """Raise them from now on, unless the user's handler does something else; return whether they were held.

        Raises
        ------
        KeyboardInterrupt
            When one was noted.
        """
        return self._open(signal.default_int_handler if self._is_usual else self._raise)

    def _open_for_code(self) -> bool:
        return self._open(self._theirs)

    @property
    def _is_usual(self) -> bool:
        return self._theirs is signal.default_int_handler

    def _open(self, handler: Any) -> bool:
        if not self._is_handling:
            return False
        # Within an asynchronous cell ipykernel's own handler is there, which cancels the cell.
        was_held = getsignal(signal.SIGINT) == self._note
        if was_held:
            set_handler(signal.SIGINT, handler)
        if self._noted:
            self._noted = False
            try:
                if was_held and not self._is_usual:
                    signal.raise_signal(signal.SIGINT)
                else:
                    raise KeyboardInterrupt
            except BaseException:
                if was_held:
                    self.hold()
                raise
        return was_held

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Do as the user's handler does; whatever it raises is an interrupt to those around the user's code."""
        if not callable(self._theirs):
            if self._theirs == signal.SIG_DFL:
                set_handler(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            return
        try:
            self._theirs(number, frame)
        except Exception as error:
            raise KeyboardInterrupt from error

    def _open_for_hooks(self) -> bool:
        # One that was noted ends the cell, which is soon; raised here it would meet IPython outside the hooks.
        was_held = self._is_handling and getsignal(signal.SIGINT) == self._note
        if was_held:
            set_handler(signal.SIGINT, self._note_and_raise)
        return was_held

    def _note(self, *_: object) -> None:
        self._noted = True

    def _note_and_raise(self, *_: object) -> None:
        self._noted = True
        raise KeyboardInterrupt


class LetThrough:
    """See :meth:`Interrupts.let_through`. No generator: one that an interrupt ends early runs its end at any time.

    Parameters
    ----------
    open_, hold
        Called at the beginning, and at the end if *open_* returned that they were held.
    """

    def __init__(self, open_: Callable[[], bool], hold: Callable[[], None]) -> None:
        self._open = open_
        self._hold = hold
        self._were_held = False

    def __enter__(self) -> None:
        self._were_held = self._open()

    def __exit__(self, *_: object) -> None:
        if not self._were_held:
            return
        try:
            self._hold()
        except BaseException:  # one came in the very moment
            self._hold()
            raise
