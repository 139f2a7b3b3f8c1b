"""Code in a process of its own, with lane memory over torch on a GPU and the executor's store beside it.

What tests look for ends processes: an assertion in torch's destructors, or two threads that wait for each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

#: seconds that such a process may take, on a busy machine
PATIENCE = 90.0
_IMPORTS = """
import os, subprocess, sys, threading
import torch
from sharedkernel.device_memory.driver import MIB
from sharedkernel.selftest import lane_process
from sharedkernel.selftest.lane_process import LANE, LaneProcess, empty, pool_bytes

def keep_busy(stream):
    lane_process.keep_busy(stream)
    assert not stream.query(), "the device is faster than this test"
"""


def run_alone(code: str, timeout: float = PATIENCE, **environment: str) -> str:
    """Run *code* in a process of its own, after `_IMPORTS`; return what it printed."""
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _IMPORTS + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}\n{process.stderr[-6000:]}"
    return process.stdout
