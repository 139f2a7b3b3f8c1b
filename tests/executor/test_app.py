"""Which device an executor serves when none is named."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until

pytestmark = pytest.mark.heavy


def start(directory: Path, visible: str, *options: str) -> subprocess.Popen[str]:
    """Start an executor that sees the GPUs *visible*."""
    command = [*COMMAND, "executor", "--runtime-dir", str(directory), "--spares", "0", *options]
    return subprocess.Popen(
        [*command, "--capacity", "1GiB", "--end-sessions-on-exit"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], directory: Path) -> str:
    """End an executor that serves; return the rest of what it said."""
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=PATIENCE)[1]
    wait_until(lambda: not processes_of(directory), "nothing is left")
    return rest


def said_until(process: subprocess.Popen[str], words: str) -> str:
    """Return what an executor says, up to the line with *words*, which has to come."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    raise AssertionError(said)


def test_without_a_gpu_the_processor_is_served_and_that_is_said(scratch: Path) -> None:
    process = start(scratch / "run", "")
    said = said_until(process, "INFO sharedkernel.executor.app: serving host")
    assert "no GPU was found: serving the processor" in said
    end(process, scratch)


def test_a_device_that_was_named_needs_no_explanation(scratch: Path) -> None:
    process = start(scratch / "run", "", "--device", "host")
    said = said_until(process, "INFO sharedkernel.executor.app: serving host")
    assert "no GPU was found" not in said + end(process, scratch)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="the GPU would be served")
def test_a_gpu_that_cannot_be_used_is_not_replaced_by_the_processor(scratch: Path) -> None:
    """Who has a GPU that does not work would wonder why everything is slow."""
    process = start(scratch / "run", "0")
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert "--device host" in said
