"""The command line in this process: what it says of its use takes no process of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess

from traitlets.config import Application

from sharedkernel.cli.main import main


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel`` with *arguments* to its end."""
    output, errors = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            if Application.initialized():
                type(Application.instance()).clear_instance()
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())
