"""The admin's Python environments, from the notebook's side: a kernel each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.client.relay.support import TIMEOUT, Notebook
from tests.executor.environments import MARKER, make_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")


def start_session(stack: LocalStack, kernel: str) -> None:
    """Start a session, for whose environment everything is imported then; clients wait a shorter time than this."""
    request = urllib.request.Request(
        f"{stack.gateway_url}/api/kernels",
        data=json.dumps({"name": kernel}).encode(),
        headers={"Authorization": f"token {stack.token('ada')}"},
    )
    with urllib.request.urlopen(request, timeout=3 * TIMEOUT) as answer:
        assert json.load(answer)["name"] == kernel


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
        command = [sys.executable, "-m", "sharedkernel", "install", "--gateway-url", stack.gateway_url]
        environment = os.environ | {"SHAREDKERNEL_TOKEN": stack.token("ada")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        assert 'the kernel "Shared GPU (PyTorch)"' in done.stdout
        assert 'the kernel "Shared GPU (second)"' in done.stdout
        kernels = tmp_path / "data" / "kernels"
        assert json.loads((kernels / "shared-gpu-second" / "kernel.json").read_text())["language"] == "python"
        start_session(stack, "shared-gpu-second")
        with Notebook(None, None, name="shared-gpu-second") as notebook:
            where = f"import {MARKER}, sys; print(sys.prefix)"
            assert notebook.run(where).text() == f"{prefix}\n"
            notebook.restart()
            assert notebook.run(where).text() == f"{prefix}\n"
        with Notebook(None, None, name="shared-gpu") as notebook:
            assert "ModuleNotFoundError" in notebook.run(f"import {MARKER}").error
