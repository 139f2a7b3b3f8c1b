"""The admin's Python environments, from the notebook's side: a kernel each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import start_session
from tests.client.relay.support import Notebook
from tests.command import run_apart
from tests.executor.environments import MARKER, make_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")


@pytest.mark.heavy
def test_each_environment_is_a_kernel_that_install_adds(
    private_jupyter: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway lists it, `sharedkernel install` installs it, notebooks run there, also after a restart."""
    python = make_environment(tmp_path / "environment")
    prefix = str(python.parents[1])
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("JUPYTER_PATH")
    with LocalStack(
        users=["ada"], capacity="1GiB", executor_arguments=["--environment", f"second={python}", "--spares", "0"]
    ) as stack:
        done = run_apart("install", "--gateway-url", stack.gateway_url, SHAREDKERNEL_TOKEN=stack.token("ada"))
        assert 'the kernel "Shared GPU (PyTorch)"' in done.stdout
        assert 'the kernel "Shared GPU (second)"' in done.stdout
        kernels = tmp_path / "data" / "kernels"
        assert json.loads((kernels / "shared-gpu-second" / "kernel.json").read_text())["language"] == "python"
        # Everything is imported for it then; clients wait a shorter time.
        start_session(stack, "ada", name="shared-gpu-second")
        with Notebook(None, None, name="shared-gpu-second") as notebook:
            where = f"import {MARKER}, sys; print(sys.prefix)"
            assert notebook.run(where).text() == f"{prefix}\n"
            notebook.restart()
            assert notebook.run(where).text() == f"{prefix}\n"
        with Notebook(None, None, name="shared-gpu") as notebook:
            assert "ModuleNotFoundError" in notebook.run(f"import {MARKER}").error
