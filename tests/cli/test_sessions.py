"""``sessions``, ``stop`` and ``offload`` against a real gateway; ada is an admin."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import end_sessions, run, shared_kernel, wait_until
from tests.cli.test_quota import cells
from tests.cli.test_status import is_idle
from tests.status.documents import to_json


def entries(stack: LocalStack, user: str) -> list[dict[str, object]]:
    """Return the status of the sessions of *user*."""
    return [entry for entry in to_json(stack.status())["sessions"] if entry["user"] == user]


@pytest.mark.heavy
def test_a_session_is_listed_offloaded_and_stopped_by_its_short_id(stack: LocalStack) -> None:
    """By its notebook's name, too; others see neither, and cannot touch it."""
    # a stack on one machine has sessions end at once
    run(stack, "ada", "quota", "grace", "--linger", "10m", status=0)

    async def scenario() -> None:
        async with shared_kernel(stack, "grace", "train.ipynb") as client:
            await client.execute_interactive("import torch; kept = torch.ones(1 << 22)", timeout=60)
            await asyncio.to_thread(wait_until, lambda: is_idle(stack, "grace"), "it is idle")
            await asyncio.to_thread(act)
            assert entries(stack, "grace")[0]["lingering"]
            await asyncio.to_thread(end_it)

    def act() -> None:
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

    def end_it() -> None:
        done = run(stack, "ada", "stop", "--user", "grace", "--now")
        assert (done.returncode, done.stdout) == (0, "stopped train.ipynb of grace\n"), done.stderr
        wait_until(lambda: not entries(stack, "grace"), "it has ended")

    try:
        asyncio.run(scenario())
    finally:
        run(stack, "ada", "quota", "--reset", status=0)
        end_sessions(stack)


@pytest.mark.heavy
async def test_of_several_sessions_each_is_looked_at_by_itself(stack: LocalStack) -> None:
    """A name of several stops none, and says their ids; one that cannot be offloaded keeps no other from it."""

    def states() -> dict[object, object]:
        kinds = {"idle": "idle", "offloaded": "idle"}
        return {entry["notebook"]: kinds.get(str(entry["state"]), "busy") for entry in entries(stack, "grace")}

    try:
        async with (
            shared_kernel(stack, "grace", "a.ipynb") as busy,
            shared_kernel(stack, "hedy", "a.ipynb"),
            shared_kernel(stack, "grace", "b.ipynb") as idle,
        ):
            done = await asyncio.to_thread(run, stack, "ada", "stop", "a.ipynb", status=1)
            ids = [str(each["kernel_id"])[:8] for user in ("grace", "hedy") for each in entries(stack, user)]
            assert done.stderr.startswith("sharedkernel: 'a.ipynb' names several sessions: ")
            assert sum(each in done.stderr for each in ids) == 2
            done = await asyncio.to_thread(run, stack, "ada", "stop", ids[0], "nothing", status=1)
            assert done.stdout == "", "all are looked for before the first is stopped"
            listed = json.loads((await asyncio.to_thread(run, stack, "ada", "sessions", "--json")).stdout)
            assert [entry["lingering"] for entry in listed] == [False] * 3
            await idle.execute_interactive("import torch; kept = torch.ones(1 << 22)", timeout=60)
            busy.execute("import time; time.sleep(600)")
            await asyncio.to_thread(wait_until, lambda: states() == {"a.ipynb": "busy", "b.ipynb": "idle"}, "it runs")
            done = await asyncio.to_thread(run, stack, "grace", "offload", "--user", "grace", status=1)
            assert done.stdout == "offloaded b.ipynb of grace\n"
            assert done.stderr.startswith("sharedkernel: a.ipynb of grace: ")
    finally:
        end_sessions(stack)


@pytest.mark.heavy
def test_a_session_that_was_brought_back_can_be_ended_once_it_is_shut_down_again(stack: LocalStack) -> None:
    """It has another kernel's id meanwhile, which ends with that."""
    run(stack, "ada", "quota", "grace", "--linger", "10m", status=0)

    async def scenario() -> None:
        for cell in ("x = 1", "%shared attach"):
            async with shared_kernel(stack, "grace", "train.ipynb") as client:
                await client.execute_interactive(cell, timeout=60)
                await client.execute_interactive("assert x == 1", timeout=60)

    try:
        asyncio.run(scenario())
        wait_until(lambda: [entry["lingering"] for entry in entries(stack, "grace")] == [True], "it lingers")
        done = run(stack, "grace", "stop", "train.ipynb", "--now")
        assert (done.returncode, done.stdout) == (0, "stopped train.ipynb of grace\n"), done.stderr
        wait_until(lambda: not entries(stack, "grace"), "it has ended")
    finally:
        run(stack, "ada", "quota", "--reset", status=0)
        end_sessions(stack)


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
    end_sessions(stack)
    assert (done.returncode, done.stdout) == (0, "sum 3\n"), done.stderr
