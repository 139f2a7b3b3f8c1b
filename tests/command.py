"""The command line, in this process or as one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from traitlets.config import Application

from sharedkernel.cli.main import main


def run_here(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel`` with *arguments* to its end in this process, which takes half a second less.

    Parameters
    ----------
    environment
        More variables.
    """
    output, errors = io.StringIO(), io.StringIO()
    status = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            if Application.initialized():
                type(Application.instance()).clear_instance()
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def run_apart(
    *arguments: str, cwd: Path | None = None, typed: str = "", timeout: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel`` with *arguments* to its end in a process of its own.

    Parameters
    ----------
    cwd
        Its working directory; None: this process's.
    typed
        Its standard input.
    timeout
        Seconds that it may take.
    environment
        Variables beside those of this process.
    """
    return subprocess.run(
        [sys.executable, "-m", "sharedkernel", *arguments],
        cwd=cwd, input=typed, env=os.environ | environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
