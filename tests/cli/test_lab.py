"""``sharedkernel lab``: a real JupyterLab over a stack of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel.local_stack import free_port
from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return JupyterLab's answer, None while there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Authorization": "token of-the-test"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="JupyterLab minds root alone")
def test_lab_says_how_root_may_run_it(scratch: Path) -> None:
    """JupyterLab's own advice is no option of this command."""
    environment = os.environ | {"TMPDIR": str(scratch), "JUPYTER_CONFIG_DIR": str(scratch)}
    arguments = ["lab", "--capacity", "1GiB", "--", "--no-browser", f"--port={free_port()}"]
    lab = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert lab.returncode == 1
    assert lab.stderr.endswith("`sharedkernel lab -- --allow-root`.\n")


def test_lab_shares_the_gpu_that_there_is(scratch: Path) -> None:
    """Nobody with a GPU means the processor, unless they say so: without its driver the sentence tells how."""
    environment = os.environ | {"TMPDIR": str(scratch), "CUDA_VISIBLE_DEVICES": "99"}
    lab = subprocess.run(
        [*COMMAND, "lab"], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert lab.returncode == 1
    assert "use --device host" in lab.stderr or "cuda:0" in lab.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_lab_offers_the_shared_kernel_and_leaves_nothing(tmp_path: Path, scratch: Path, signum: signal.Signals) -> None:
    """The kernelspec is the default, a kernel starts, and the end leaves no process, nor a file if it had a chance."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    work = tmp_path / "work"
    work.mkdir()
    environment = os.environ | {
        "TMPDIR": str(scratch),
        "HOME": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(work / "run"),
        "PATH": "/usr/bin:/bin",
    }
    arguments = [
        "lab", "--capacity", "1GiB", "--", "--no-browser", "--allow-root", f"--port={port}", f"--notebook-dir={work}",
        "--IdentityProvider.token=of-the-test", "--LabApp.collaborative=False",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        lab = subprocess.Popen([*COMMAND, *arguments], cwd=work, env=environment, stdout=log, stderr=log)
    try:
        first = f"{url}/api/kernelspecs"
        wait_until(lambda: lab.poll() is not None or ask(first), "JupyterLab's first answer", 2 * PATIENCE)
        assert lab.poll() is None, (tmp_path / "log").read_text()
        specs = ask(f"{url}/api/kernelspecs")
        assert specs["default"] == "shared-gpu"
        assert specs["kernelspecs"]["shared-gpu"]["spec"]["display_name"] == "Shared GPU (PyTorch)"
        (server,) = (child for child in psutil.Process(lab.pid).children() if "jupyterlab" in child.cmdline())
        # Terminals know this environment's commands, also where it is not active.
        assert server.environ()["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
        assert ask(f"{url}/api/kernels", {"name": "shared-gpu"})["id"]
        (stack,) = scratch.glob("sk-*")
        assert processes_of(stack)
        lab.send_signal(signum)
        lab.wait(PATIENCE)
        wait_until(lambda: not processes_of(stack), "the end of the stack")
        wait_until(lambda: ask(f"{url}/api") is None, "the end of JupyterLab")
        if signum == signal.SIGTERM:
            assert list(scratch.iterdir()) == []
    finally:
        lab.kill()
        lab.wait()
