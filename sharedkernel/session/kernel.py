"""The kernel: an ordinary ipykernel whose user code runs in sections of the gate."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ipykernel import ipkernel
from ipykernel.ipkernel import IPythonKernel
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Instance, Type

from sharedkernel.session.gate import Gate
from sharedkernel.session.loops import LoopReporter
from sharedkernel.session.packages import PackageMagics
from sharedkernel.session.quota import ErrorTranslation, Quota

#: files of the modules that were imported before the fork; the debugger does not step into them
imported_files: list[str] = []


def note_imported_files() -> None:
    """Fill :data:`imported_files` (in the warm parent, once it has imported everything)."""
    imported_files[:] = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]


@contextlib.contextmanager
def _unaware_of_modules() -> Iterator[None]:
    """Keep ipykernel from looking at every imported module while it makes a kernel.

    It does so for its debugger's list of files. Each look counts a reference, which writes to a page that all sessions
    share: about 10 MiB of copies a session, of 36. The list is made once instead, by :func:`note_imported_files`.
    """
    real = ipkernel.sys
    ipkernel.sys = SimpleNamespace(modules={}, platform=sys.platform)  # type: ignore[assignment]
    try:
        yield
    finally:
        ipkernel.sys = real


class SessionShell(ErrorTranslation, ZMQInteractiveShell):
    """IPython's shell, with loops that report, errors that carry figures, and a `%pip` of the user's own."""

    def init_magics(self) -> None:
        """Register IPython's magics, then ours over them."""
        super().init_magics()
        self.register_magics(PackageMagics)


class SessionKernel(IPythonKernel):
    """An ipykernel behind a gate.

    The gate is set by :mod:`.process` once the kernel exists, before any message is handled.
    """

    shell_class = Type(SessionShell)
    gate = Instance(Gate, allow_none=True)
    #: said before the first cell's own output; None once it was
    greeting: str | None = None

    def __init__(self, **kwargs: Any) -> None:
        with _unaware_of_modules():
            super().__init__(**kwargs)
        self._kernel_modules = imported_files
        if getattr(self, "debugger", None) is not None:
            self.debugger.kernel_modules = imported_files

    def pass_gate(self, gate: Gate, quota: Quota) -> None:
        """Run all user code behind *gate* from now on."""
        assert isinstance(self.shell, SessionShell)
        self.gate = gate
        self.shell.quota = quota
        self.shell.ast_transformers.append(LoopReporter())

    async def dispatch_shell(self, msg: Any, /, subshell_id: str | None = None, *, concurrent: bool = False) -> None:
        """Handle a message of the shell channel; on a subshell's thread, behind the gate as well."""
        if self.gate is None or threading.current_thread() is threading.main_thread():
            # The main thread's operations outside cells open a section of their own.
            await super().dispatch_shell(msg, subshell_id=subshell_id, concurrent=concurrent)
            return
        self.gate.guard_thread()
        with self.gate.section():
            await super().dispatch_shell(msg, subshell_id=subshell_id, concurrent=concurrent)

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> Any:
        """Run a cell as one section."""
        assert self.gate is not None
        if self.greeting is not None and not silent:
            self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": self.greeting + "\n"})
            self.greeting = None
        with self.gate.section():
            return await super().do_execute(code, silent, *args, **kwargs)
