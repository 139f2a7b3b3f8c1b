"""The likeness to a kernel that jupyter_client started, in what notebooks and libraries look at.

Rich, plotly, tqdm and others choose how to show things by the names of the shell's and the streams' classes; argument
parsers, `multiprocessing` and notebooks look at arguments, folders and variables.

The debugger and IPython look at all modules for each kernel. Each look counts a reference, which writes to a page that
all sessions share: about 14 MiB of copies a session. Here they are looked at once, before the fork.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from ipykernel import ipkernel
from IPython.core import shellapp

C = TypeVar("C", bound=type)

_LAUNCHER = "ipykernel_launcher"


def named_as(base: type) -> Callable[[C], C]:
    """Return a decorator that gives a class the name of its *base*."""

    def rename(cls: C) -> C:
        assert issubclass(cls, base)
        cls.__name__, cls.__qualname__, cls.__module__ = base.__name__, base.__qualname__, base.__module__
        return cls

    return rename


def take_arguments(connection_file: str) -> None:
    """Give this process the arguments of a stock kernel with *connection_file*."""
    spec = importlib.util.find_spec(_LAUNCHER)
    options = ["-f", connection_file]
    sys.argv = [(spec.origin if spec is not None else None) or _LAUNCHER, *options]
    sys.orig_argv = [sys.executable, "-m", _LAUNCHER, *options]
    os.environ["JPY_PARENT_PID"] = str(os.getppid())


def start_here(shell: Any, notebook: str | None) -> None:
    """Have the kernel of *shell* look as if it had been started in the current folder.

    Parameters
    ----------
    shell
        IPython's.
    notebook
        The notebook's path, if its client has said it.
    """
    here = Path.cwd()
    # What is spawned imports the notebook's own modules from there.
    if (process := sys.modules.get("multiprocessing.process")) is not None:  # else it looks when it is imported
        process.ORIGINAL_DIR = str(here)  # type: ignore[attr-defined]
    shell.starting_dir = str(here)
    shell.history_manager.dir_hist[:] = [here]
    if notebook is not None:
        os.environ["JPY_SESSION_NAME"] = shell.user_ns["__session__"] = notebook


#: files of the modules that were imported before the fork; the debugger does not step into them
imported_files: list[str] = []
_names: set[str] = set()


def note_modules() -> None:
    """Note what is imported by now (in the warm parent, once it has imported everything)."""
    imported_files[:] = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    _names.update(sys.modules)


def imported_names() -> set[str]:
    """Return the names of all modules that are imported by now; those since the fork are the last in `sys.modules`."""
    _names.update(islice(reversed(sys.modules), max(0, len(sys.modules) - len(_names))))
    return _names


class _SysWithoutModules:
    """`sys` for a module of IPython's, which notes what was imported (for `%reset --aggressive`)."""

    modules: dict[str, Any] = {}  # noqa: RUF012 (as in sys)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)


@contextlib.contextmanager
def unaware_of_modules() -> Iterator[None]:
    """Keep ipykernel and IPython from looking at every imported module while they make a kernel."""
    real = ipkernel.sys, shellapp.sys
    ipkernel.sys = SimpleNamespace(modules={}, platform=sys.platform)  # type: ignore[assignment]
    shellapp.sys = _SysWithoutModules()  # type: ignore[assignment]
    try:
        yield
    finally:
        ipkernel.sys, shellapp.sys = real
