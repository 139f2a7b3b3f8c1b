"""Which device an executor serves when none is named."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until

pytestmark = pytest.mark.heavy


def test_without_a_gpu_the_processor_is_served_and_that_is_said(scratch: Path) -> None:
    command = [*COMMAND, "executor", "--runtime-dir", str(scratch / "run"), "--spares", "0", "--capacity", "1GiB"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [*command, "--end-sessions-on-exit"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "INFO sharedkernel.executor.app: serving host" in line:
                break
        assert "no GPU was found: serving the processor" in said
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    wait_until(lambda: not processes_of(scratch / "run"), "nothing is left")
