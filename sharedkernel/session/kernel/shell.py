"""IPython's shell in a session."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell

from sharedkernel.session.gate.torch_internals import without_ours
from sharedkernel.session.kernel.likeness import named_as
from sharedkernel.session.kernel.magics import SharedMagics
from sharedkernel.session.kernel.packages import PackageMagics
from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.session.memory.lease_check import ErrorTranslator


@named_as(ZMQInteractiveShell)
class SessionShell(ZMQInteractiveShell):
    """IPython's shell, with loops that report, errors that carry figures, a `%pip` of the user's own, and `%shared`."""

    #: set by the kernel before the first cell
    translator: ErrorTranslator

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
