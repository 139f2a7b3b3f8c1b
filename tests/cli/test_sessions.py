"""``sessions``, ``stop`` and ``offload`` against a real gateway; ada is an admin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import entries, run, shared_kernel, wait_until
from tests.cli.test_quota import cells
from tests.cli.test_status import is_idle

pytestmark = pytest.mark.usefixtures("as_before")


@pytest.mark.heavy
def test_a_session_is_listed_offloaded_and_stopped_by_its_short_id(stack: LocalStack) -> None:
    """By its notebook's name, too; others see neither, and cannot touch it."""
    # a stack on one machine has sessions end at once
    run(stack, "ada", "quota", "grace", "--linger", "10m", status=0)
    with shared_kernel(stack, "grace", "train.ipynb") as notebook:
        notebook.run("import torch; kept = torch.ones(1 << 22)")
        wait_until(lambda: is_idle(stack, "grace"), "it is idle")
        kernel_id = str(entries(stack, "grace")[0]["kernel_id"])
        [row] = [row for row in cells(run(stack, "grace", "sessions").stdout) if "train.ipynb" in row]
        assert row[:4] == [kernel_id[:8], "grace", "train.ipynb", "idle"]
        [row] = [row for row in cells(run(stack, "hedy", "sessions", "--user", "grace").stdout) if "grace" in row]
        assert row[:3] == ["-", "grace", "-"]
        assert run(stack, "hedy", "sessions", "--user", "hedy").stdout == "No sessions.\n"
        for what in (kernel_id[:8], "train.ipynb"):
            refused = run(stack, "hedy", "stop", what)
            assert (refused.returncode, refused.stderr) == (
                1, f"sharedkernel: there is no session {what!r} among yours; `sharedkernel sessions` lists them.\n"
            )  # fmt: skip
        refused = run(stack, "hedy", "offload", "--user", "grace")
        assert refused.stderr == "sharedkernel: there is no session of 'grace' that you may offload.\n"
        done = run(stack, "grace", "offload", "train.ipynb")
        assert (done.returncode, done.stdout) == (0, "offloaded train.ipynb of grace\n"), done.stderr
        assert entries(stack, "grace")[0]["state"] == "offloaded"
        none = run(stack, "grace", "stop", "--programs", "train.ipynb")
        assert none.returncode == 1
        assert none.stderr.endswith("no program of this notebook uses the device now.\n")
        assert not entries(stack, "grace")[0]["lingering"]
        done = run(stack, "grace", "stop", kernel_id[:8])
        assert (done.returncode, done.stdout) == (0, "stopped train.ipynb of grace\n"), done.stderr
        assert entries(stack, "grace")[0]["lingering"]
        done = run(stack, "ada", "stop", "--user", "grace", "--now")
        assert (done.returncode, done.stdout) == (0, "stopped train.ipynb of grace\n"), done.stderr
        wait_until(lambda: not entries(stack, "grace"), "it has ended")


@pytest.mark.heavy
def test_of_several_sessions_each_is_looked_at_by_itself(stack: LocalStack) -> None:
    """A name of several stops none, and says their ids; one that cannot be offloaded keeps no other from it."""

    def states() -> dict[object, object]:
        kinds = {"idle": "idle", "offloaded": "idle"}
        return {entry["notebook"]: kinds.get(str(entry["state"]), "busy") for entry in entries(stack, "grace")}

    with (
        shared_kernel(stack, "grace", "a.ipynb") as busy,
        shared_kernel(stack, "hedy", "a.ipynb"),
        shared_kernel(stack, "grace", "b.ipynb") as idle,
    ):
        done = run(stack, "ada", "stop", "a.ipynb", status=1)
        ids = [str(each["kernel_id"])[:8] for user in ("grace", "hedy") for each in entries(stack, user)]
        assert done.stderr.startswith("sharedkernel: 'a.ipynb' names several sessions: ")
        assert sum(each in done.stderr for each in ids) == 2
        done = run(stack, "ada", "stop", ids[0], "nothing", status=1)
        assert done.stdout == "", "all are looked for before the first is stopped"
        listed = json.loads(run(stack, "ada", "sessions", "--json").stdout)
        assert [entry["lingering"] for entry in listed] == [False] * 3
        idle.run("import torch; kept = torch.ones(1 << 22)")
        busy.client.execute("import time; time.sleep(600)")
        wait_until(lambda: states() == {"a.ipynb": "busy", "b.ipynb": "idle"}, "it runs")
        done = run(stack, "grace", "offload", "--user", "grace", status=1)
        assert done.stdout == "offloaded b.ipynb of grace\n"
        assert done.stderr.startswith("sharedkernel: a.ipynb of grace: ")


@pytest.mark.heavy
def test_a_session_that_was_brought_back_can_be_ended_once_it_is_shut_down_again(stack: LocalStack) -> None:
    """It has another kernel's id meanwhile, which ends with that."""
    run(stack, "ada", "quota", "grace", "--linger", "10m", status=0)
    for cell in ("x = 1", "%shared attach"):
        with shared_kernel(stack, "grace", "train.ipynb") as notebook:
            notebook.run(cell)
            notebook.run("assert x == 1")
    wait_until(lambda: [entry["lingering"] for entry in entries(stack, "grace")] == [True], "it lingers")
    done = run(stack, "grace", "stop", "train.ipynb", "--now")
    assert (done.returncode, done.stdout) == (0, "stopped train.ipynb of grace\n"), done.stderr
    wait_until(lambda: not entries(stack, "grace"), "it has ended")


def test_jupyter_run_runs_a_file_on_the_shared_device(stack: LocalStack, tmp_path: Path) -> None:
    """It names the file to the kernel's process as well, which is not for the kernel."""
    program = tmp_path / "program.py"
    program.write_text("import torch; print('sum', int(torch.ones(3).sum()))")
    jupyter = str(Path(sys.executable).with_name("jupyter"))
    variables = os.environ | stack.client_environment("grace") | {"JUPYTER_PATH": str(stack.kernels_directory.parent)}
    done = subprocess.run(
        [jupyter, "run", "--kernel", "shared-gpu", str(program)],
        capture_output=True, text=True, timeout=120, env=variables, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "sum 3\n"), done.stderr
