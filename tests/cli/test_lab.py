"""``sharedkernel lab``: a real JupyterLab over a stack of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import websocket

from sharedkernel.cli.lab import LabApp
from sharedkernel.local_stack import free_port
from tests import asking
from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until
from tests.command import run_apart

TOKEN = "of-the-test"


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return JupyterLab's answer, None while there is none."""
    try:
        return asking.ask(url, TOKEN, "GET" if body is None else "POST", body).body
    except OSError:
        return None


def in_terminal(url: str, name: str) -> str:
    """Return where a terminal finds `pip`, and whether it knows what the user's own file defines."""
    header = [f"Authorization: token {TOKEN}"]
    address = f"{url}/terminals/websocket/{name}"
    with closing(websocket.create_connection(address, timeout=PATIENCE, header=header)) as socket:
        # in two parts, so that the echo of the line is not taken for its output
        socket.send(json.dumps(["stdin", "echo sa''id $(type -p pip) $(type -t mine) do''ne\r"]))
        shown = ""
        while (found := re.search(r"said (\S+ \S+) done", shown)) is None:
            kind, *rest = json.loads(socket.recv())
            shown += rest[0] if kind == "stdout" else ""
        return found[1]


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="JupyterLab minds root alone")
def test_lab_says_how_root_may_run_it(scratch: Path) -> None:
    """JupyterLab's own advice is no option of this command."""
    arguments = ["lab", "--capacity", "1GiB", "--", "--no-browser", f"--port={free_port()}"]
    places = {"TMPDIR": str(scratch), "JUPYTER_CONFIG_DIR": str(scratch)}
    lab = run_apart(*arguments, cwd=scratch, timeout=2 * PATIENCE, **places)
    assert lab.returncode == 1
    assert lab.stderr.endswith("`sharedkernel lab -- --allow-root`.\n")


@pytest.mark.heavy
def test_lab_shares_the_gpu_that_there_is(scratch: Path) -> None:
    """Nobody with a GPU means the processor, unless they say so: without its driver the sentence tells how."""
    lab = run_apart("lab", TMPDIR=str(scratch), CUDA_VISIBLE_DEVICES="99")
    assert lab.returncode == 1
    assert "use --device host" in lab.stderr or "cuda:0" in lab.stderr


def test_a_first_notebook_is_put_where_jupyterlab_was_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither which folder it serves, nor what it opens; and where there is no other one."""
    monkeypatch.chdir(tmp_path)
    for told in ("--notebook-dir=/x", "--ServerApp.root_dir=/x", "--LabApp.default_url=/tree", str(tmp_path)):
        assert LabApp(extra_args=["--no-browser", told])._first_notebook() == []
    assert list(tmp_path.iterdir()) == []
    assert LabApp(extra_args=["--no-browser"])._first_notebook() != []
    assert LabApp(extra_args=["--no-browser"])._first_notebook() == []


@pytest.mark.heavy
def test_lab_offers_the_shared_kernel_and_leaves_nothing(tmp_path: Path, scratch: Path) -> None:
    """The kernelspec is the default, a kernel starts, and the end leaves neither a process nor a file."""
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
        f"--IdentityProvider.token={TOKEN}", "--LabApp.collaborative=False",
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
        assert server.environ()["PATH"] == f"{Path(sys.executable).parent}:{environment['PATH']}"
        # And so they do where the shell's own file forgets them.
        shown = in_terminal(f"ws://127.0.0.1:{port}", ask(f"{url}/api/terminals", {})["name"])
        assert shown == f"{Path(sys.executable).parent / 'pip'} alias"
        # It would end with a command that is killed, as the stack does: tests/test_local_stack.py.
        assert "sharedkernel.system.processes" in server.cmdline()
        # A first notebook is opened where there is none.
        assert [path.name for path in work.glob("*.ipynb")] == ["first_steps.ipynb"]
        assert "--LabApp.default_url=/lab/tree/first_steps.ipynb" in server.cmdline()
        told = (tmp_path / "log").read_text()
        assert told.index("http://") < told.index("JupyterLab extension loaded")
        assert "the panel Shared GPU" in told
        assert ask(f"{url}/api/kernels", {"name": "shared-gpu"})["id"]
        (stack,) = scratch.glob("sk-*")
        assert processes_of(stack)
        lab.send_signal(signal.SIGTERM)
        lab.wait(PATIENCE)
        wait_until(lambda: not processes_of(stack), "the end of the stack")
        wait_until(lambda: ask(f"{url}/api") is None, "the end of JupyterLab")
        assert list(scratch.iterdir()) == []
    finally:
        lab.kill()
        lab.wait()
