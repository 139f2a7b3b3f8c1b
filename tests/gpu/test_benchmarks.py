"""The GPU's benchmarks where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.system.nvml import Gpu

pytestmark = pytest.mark.heavy

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks" / "gpu").glob("*.py"))


def has_gpu() -> bool:
    try:
        check_torch()
        Gpu("cuda:0").close()
    except SharedKernelError:
        return False
    return True


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here, on which they would run")
def test_without_a_gpu_each_says_so_and_exits_with_2(tmp_path: Path) -> None:
    """One sentence, no traceback and no result."""
    runs = {
        script.name: subprocess.Popen(
            [sys.executable, str(script), "--json", str(tmp_path / script.name)], stderr=subprocess.PIPE, text=True
        )
        for script in SCRIPTS
        if script.name not in ("common.py", "first.py")
    }
    assert len(runs) >= 8
    for name, run in runs.items():
        _, said = run.communicate()
        assert run.returncode == 2, said
        assert len(said.splitlines()) == 1, said
        assert said.strip().endswith("."), said
        assert not (tmp_path / name).exists()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here, on which it would run")
def test_without_a_gpu_the_kit_for_the_first_card_writes_no_report(tmp_path: Path) -> None:
    """Its exit code says so, for scripts, and its sentence for people."""
    script = next(script for script in SCRIPTS if script.name == "first.py")
    run = subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path / "results")], capture_output=True, text=True
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("first: ")
    assert run.stderr.strip().endswith(".")
    assert not (tmp_path / "results").exists()
