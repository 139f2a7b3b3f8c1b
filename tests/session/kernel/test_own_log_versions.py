"""The session's own log under every Python there is here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.session.kernel import own_log

#: on each version, 3.13 among them, whose logging enters its handlers' locks
PYTHONS = sorted({sys.executable, *map(str, Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python"))})

#: the module alone: nothing else is installed there
CODE = """
import importlib.util, io, logging, sys
spec = importlib.util.spec_from_file_location("own_log", sys.argv[1])
own_log = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own_log)
logging.getLogger("sharedkernel.gate")
own_log.prepare()
stream = io.StringIO()
own_log.set_up(stream)
logging.getLogger("sharedkernel.gate").info("written")
logging.shutdown()
assert stream.getvalue().endswith("INFO sharedkernel.gate: written\\n"), stream.getvalue()
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_records_are_written(python: str) -> None:
    """Without a lock, which logging enters all the same."""
    done = subprocess.run([python, "-c", CODE, own_log.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
