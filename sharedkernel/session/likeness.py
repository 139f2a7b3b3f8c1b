"""The likeness to a kernel that jupyter_client started, in what notebooks and libraries look at.

Rich, plotly, tqdm and others choose how to show things by the names of the shell's and the streams' classes; argument
parsers, `multiprocessing` and notebooks look at arguments, folders and variables.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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
