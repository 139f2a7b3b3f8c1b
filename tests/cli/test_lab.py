"""``sharedkernel lab``: a real JupyterLab over a stack of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import websocket

from sharedkernel.demo import NotebookRuns, examples_directory
from sharedkernel.local_stack import LocalStack, free_port
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
def test_the_first_notebook_runs(stack: LocalStack) -> None:
    """Five cells, as anybody would run them."""
    notebook = examples_directory() / "first_steps.ipynb"
    assert len(nbformat.read(notebook, as_version=4).cells) == 5
    runs = NotebookRuns(stack, [("ada", notebook)])
    runs.start()
    try:
        wait_until(lambda: runs.ended, "the notebook's end", 2 * PATIENCE)
    finally:
        runs.close()
    assert [(run.cells_done, run.cells, run.failure) for run in runs.runs] == [(3, 3, None)]


def in_terminal(url: str, name: str) -> str:
    """Return where a terminal finds `pip`, and whether it knows what the user's own file defines."""
    socket = websocket.create_connection(
        f"{url}/terminals/websocket/{name}", timeout=PATIENCE, header=["Authorization: token of-the-test"]
    )
    try:
        # in two parts, so that the echo of the line is not taken for its output
        socket.send(json.dumps(["stdin", "echo sa''id $(type -p pip) $(type -t mine) do''ne\r"]))
        shown = ""
        while (found := re.search(r"said (\S+ \S+) done", shown)) is None:
            kind, *rest = json.loads(socket.recv())
            shown += rest[0] if kind == "stdout" else ""
        return found[1]
    finally:
        socket.close()


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="JupyterLab minds root alone")
def test_lab_says_how_root_may_run_it(scratch: Path) -> None:
    """JupyterLab's own advice is no option of this command."""
    environment = os.environ | {"TMPDIR": str(scratch), "JUPYTER_CONFIG_DIR": str(scratch)}
    arguments = ["lab", "--capacity", "1GiB", "--", "--no-browser", f"--port={free_port()}"]
    lab = subprocess.run(
        [*COMMAND, *arguments],
        cwd=scratch, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert lab.returncode == 1
    assert lab.stderr.endswith("`sharedkernel lab -- --allow-root`.\n")


@pytest.mark.heavy
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
        "PATH": f"/usr/bin:{Path(sys.executable).parent}:/bin",
        "SHELL": "/bin/bash",
    }
    (tmp_path / ".bashrc").write_text("PATH=/usr/bin:/bin\nalias mine=true\n")
    arguments = [
        "lab", "--capacity", "1GiB", "--", "--no-browser", "--allow-root", f"--port={port}",
        "--IdentityProvider.token=of-the-test", "--LabApp.collaborative=False",
    ]  # fmt: skip
    is_told_where = signum == signal.SIGTERM
    if is_told_where:
        arguments.append(f"--notebook-dir={work}")
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
        assert server.environ()["PATH"] == f"{Path(sys.executable).parent}:{environment['PATH']}"
        # And so they do where the shell's own file forgets them.
        shown = in_terminal(f"ws://127.0.0.1:{port}", ask(f"{url}/api/terminals", {})["name"])
        assert shown == f"{Path(sys.executable).parent / 'pip'} alias"
        # A first notebook is opened where there is none, unless JupyterLab was told which folder it serves.
        assert [path.name for path in work.glob("*.ipynb")] == ([] if is_told_where else ["first_steps.ipynb"])
        assert ("--LabApp.default_url=/lab/tree/first_steps.ipynb" in server.cmdline()) != is_told_where
        told = (tmp_path / "log").read_text()
        assert told.index("http://") < told.index("JupyterLab extension loaded")
        assert "the panel Shared GPU" in told
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
