"""IPython's shell in a session, with ``%shared``: what the widgets show, as text."""

from __future__ import annotations

import inspect
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.error import UsageError
from IPython.core.history import HistoryManager, HistorySavingThread
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class

from sharedkernel.ipc import current_session
from sharedkernel.session.gate.torch_internals import without_ours
from sharedkernel.session.kernel.packages import PackageMagics
from sharedkernel.session.likeness import named_as
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.session.memory.lease_check import ErrorTranslator
from sharedkernel.status.document import WatchedStatus

#: seconds to wait for the device's answer
_ANSWER_TIMEOUT = 2.0
_PARTS = ("usage", "queue", "lanes")
_NO_ANSWER = "The device does not answer at the moment; your session is not affected. Try again."


@magics_class
class SharedMagics(Magics):
    """Line magics about the shared device."""

    @line_magic
    def shared(self, words: str) -> None:
        """Print this notebook's memory, its place in the queue, and the lanes of the last minutes.

        ``%shared`` prints all of it, ``%shared usage``, ``%shared queue`` and ``%shared lanes`` a part.
        ``%shared attach`` brings back the earlier session of this notebook, with its variables, in place of this one.
        ``%shared free`` forgets the last error and the results that were shown (``Out``, ``_``), and collects garbage.

        Raises
        ------
        UsageError
            For a part that there is not.
        """
        shell: Any = self.shell
        match words.split():
            case ["attach"]:
                text = current_session.want_earlier(_ANSWER_TIMEOUT) or _NO_ANSWER
            case ["help"]:
                text = inspect.cleandoc(SharedMagics.shared.__doc__ or "").partition("\n\nRaises")[0]
            case ["free"]:
                reclaimable.forget_results(shell)
                shell.kernel.gate.report_freed()
                text = "The last error, results that were shown, and garbage hold no memory any more."
            case parts:
                if unknown := [part for part in parts if part not in _PARTS]:
                    known = ", ".join(_PARTS)
                    raise UsageError(
                        f"%shared has no part {unknown[0]!r}; write %shared, or one of {known}, attach, free, help."
                    )
                shell.kernel.gate.report_freed()
                # Here, because nothing of it is needed before somebody asks.
                from sharedkernel.widgets.render import as_text

                status = _newest_status()
                text = as_text(parts or _PARTS, status, current_session.session_id()) if status else _NO_ANSWER
        print(text)  # noqa: T201


def _newest_status() -> WatchedStatus | None:
    """Return the status document of this moment; None when it does not come in time."""
    documents: queue.SimpleQueue[WatchedStatus] = queue.SimpleQueue()
    unsubscribe = current_session.subscribe(documents.put)
    try:
        return documents.get(timeout=_ANSWER_TIMEOUT)
    except queue.Empty:
        return None
    finally:
        unsubscribe()


# ipykernel asks for it at each cell; Python would look at the function's code each time.
InteractiveShell.run_cell_async.__signature__ = inspect.signature(InteractiveShell.run_cell_async)  # type: ignore[attr-defined]

#: seconds after a cell's begin when it is written to the history on disk, with those that have begun meanwhile
_HISTORY_DELAY, _HISTORY_PAUSE = 0.3, 0.05


class _DelayedFlag(threading.Event):
    """Tells the thread that writes the history to do so, a little later and once for several cells.

    Parameters
    ----------
    saver
        The thread.
    """

    def __init__(self, saver: HistorySavingThread) -> None:
        super().__init__()
        self._saver = saver

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to write and it is time to."""
        is_set = super().wait(timeout)
        until = time.monotonic() + _HISTORY_DELAY
        while not self._saver._stop_now and time.monotonic() < until:
            time.sleep(_HISTORY_PAUSE)
        return is_set


@named_as(HistoryManager)
class SessionHistory(HistoryManager):
    """IPython's history, which is not written while a cell runs whose reply somebody waits for.

    A commit beside a cell takes a millisecond of processor time, and the lock for which the next cell waits.
    """

    @property
    def save_flag(self) -> threading.Event | None:
        """Set when there is something to write."""
        saver = self.save_thread
        if saver is not None and not isinstance(saver.save_flag, _DelayedFlag):  # as in a thread that has just begun
            begun, saver.save_flag = saver.save_flag, _DelayedFlag(saver)
            begun.set()
        return None if saver is None else saver.save_flag


@named_as(ZMQInteractiveShell)
class SessionShell(ZMQInteractiveShell):
    """IPython's shell, with loops that report, errors that carry figures, a `%pip` of the user's own, and `%shared`."""

    #: set by the kernel before the first cell
    translator: ErrorTranslator
    #: the source of the cell that is about to run, and what IPython's transformations made of it
    transformed: tuple[str, str] | None = None

    def init_history(self) -> None:
        """Open the history."""
        self.history_manager = SessionHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def transform_cell(self, raw_cell: str) -> str:
        """Return a cell's Python: ipykernel asks for it, and IPython once more before the code runs."""
        if self.transformed is None or self.transformed[0] != raw_cell:
            self.transformed = raw_cell, super().transform_cell(raw_cell)
        return self.transformed[1]

    def should_run_async(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether a cell has `await` in it, and tell the kernel of the main thread's."""
        is_async = bool(super().should_run_async(*args, **kwargs))
        if threading.current_thread() is threading.main_thread():
            self.kernel.awaits = is_async
        return is_async

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        """Have errors reach the client that IPython cannot format."""
        super().init_traceback_handlers(custom_exceptions)
        formatted = self.InteractiveTB.structured_traceback
        self.InteractiveTB.structured_traceback = _or_plain(formatted)  # type: ignore[method-assign]

    def init_events(self) -> None:
        """Have hooks be interrupted: what is done after a cell, like the drawing of figures, and before it, with it."""
        super().init_events()
        trigger = self.events.trigger

        def open_to_interrupts(event: str, *args: Any, **kwargs: Any) -> None:
            interrupts = self.kernel.interrupts
            if event.endswith("_execute") and self.kernel.is_handling_event_beside_cell():
                return  # pyplot would show the cell's figures as the event's, which pages do not show
            if event.startswith("post_"):
                with interrupts.let_through():
                    trigger(event, *args, **kwargs)
            elif event == "pre_run_cell" and self.events.callbacks[event]:
                with interrupts.let_into_hooks():
                    trigger(event, *args, **kwargs)
            else:  # before a request IPython does things of its own
                trigger(event, *args, **kwargs)

        self.events.trigger = open_to_interrupts  # type: ignore[method-assign]

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> Any:
        """Run a compiled piece of a cell, open to interrupts; its *result* has the translated error."""
        self.transformed = None  # it depends on the user's names and transformers, which may change now
        with self.kernel.interrupts.let_into_code():
            failed = await super().run_code(code_obj, result, async_=async_)
            if result is not None and result.error_in_exec is not None:
                result.error_in_exec = self.translator.translate(result.error_in_exec)
            return failed

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        kind, error, traceback = super()._get_exc_info(exc_tuple)
        traceback = without_ours(traceback) or traceback
        translated = self.translator.translate(error)
        return (kind, error, traceback) if translated is error else (type(translated), translated, traceback)

    def user_expressions(self, expressions: dict[str, str]) -> Any:
        """Evaluate what is asked for beside a cell, open to interrupts."""
        with self.kernel.interrupts.let_through():
            return super().user_expressions(expressions)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an error, though the session may be at its memory's limit: to show it takes some, too."""
        with unlimited_rlimit():
            super().showtraceback(*args, **kwargs)

    def init_magics(self) -> None:
        """Register IPython's magics, then ours over them."""
        super().init_magics()
        self.register_magics(PackageMagics, SharedMagics)


def _or_plain(formatted: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return *formatted*, which formats a traceback as Python itself does should it fail.

    IPython would print both errors, and clients would receive neither. This happens in Python 3.11 if an interrupt
    comes between two lines, where a frame has no line number: for one in several hundred that end a training.
    """

    def structured_traceback(kind: Any, error: Any, trace: Any = None, *args: Any, **kwargs: Any) -> list[str]:
        try:
            return formatted(kind, error, trace, *args, **kwargs)
        except Exception:
            try:
                lines = traceback.format_exception(kind, error, trace)
            except Exception:
                lines = traceback.format_exception_only(kind, error)
            return "".join(lines).splitlines()

    return structured_traceback
