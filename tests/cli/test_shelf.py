"""``shelf`` against a real gateway; ada is an admin."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import COMMAND, shared_kernel, wait_until
from tests.command import run_here
from tests.status.documents import to_json

SHELVE = (
    "import torch; from sharedkernel import shelf; shelf['model'] = torch.ones(1 << 18); shelf['loss'] = torch.ones(1)"
)


def run_shelf(stack: LocalStack, user: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel shelf`` as *user*."""
    variables = os.environ | stack.client_environment(user) | {"COLUMNS": "80"} | environment
    return subprocess.run(
        [*COMMAND, "shelf", *arguments], capture_output=True, text=True, timeout=60, env=variables, check=False
    )


def shelve(stack: LocalStack, user: str, code: str = SHELVE) -> None:
    """Run *code* in a notebook of *user*, and shut it down."""

    async def run() -> None:
        async with shared_kernel(stack, user) as client:
            reply = await client.execute_interactive(code, timeout=60)
            assert reply["content"]["status"] == "ok"

    asyncio.run(run())


def test_a_user_lists_an_own_shelf_and_takes_things_off(stack: LocalStack) -> None:
    """By name and size; others' are refused in the gateway's sentence."""
    assert run_shelf(stack, "grace").stdout == "Nothing is on the shelf.\n"
    shelve(stack, "grace")
    listed = run_shelf(stack, "grace").stdout.splitlines()
    assert [line.split()[:4] for line in listed if line.startswith("grace ")] == [
        ["grace", "loss", "4.0", "KiB"],
        ["grace", "model", "1.0", "MiB"],
    ]
    assert listed[-1] == "grace: 1.0 MiB in all"
    assert max(map(len, listed)) <= 80
    for arguments in (["--user", "grace"], ["--user", "grace", "--remove", "loss"]):
        refused = run_shelf(stack, "hedy", *arguments)
        assert (refused.returncode, refused.stderr) == (
            1, "sharedkernel: only admins may see and empty other users' shelves.\n"
        )  # fmt: skip
    done = run_shelf(stack, "grace", "--remove", "loss")
    assert (done.returncode, done.stdout) == (0, "removed loss (4.0 KiB) from the shelf of grace\n")
    done = run_shelf(stack, "grace", "--remove", "loss")
    assert (done.returncode, done.stderr) == (1, "sharedkernel: there is no 'loss' on the shelf of 'grace'.\n")
    assert [
        entry["name"] for entry in json.loads(run_shelf(stack, "grace", "--remove-all", "--json").stdout)["removed"]
    ] == ["model"]
    assert json.loads(run_shelf(stack, "grace", "--json").stdout) == {"shelves": [], "away": {}}


def test_an_admin_empties_the_shelf_of_somebody_who_has_left(stack: LocalStack) -> None:
    """Without a session or a token of theirs; nothing is charged then, and other users' things stay."""
    shelve(stack, "grace", "from sharedkernel import shelf; shelf['kept'] = [1]")
    shelve(stack, "hedy")
    listed = run_shelf(stack, "ada").stdout
    assert [line.split()[:2] for line in listed.splitlines() if line.startswith(("grace ", "hedy "))] == [
        ["grace", "kept"],
        ["hedy", "loss"],
        ["hedy", "model"],
    ]
    assert "kept" not in run_shelf(stack, "ada", "--user", "hedy").stdout
    done = run_shelf(stack, "ada", "--user", "hedy", "--remove-all")
    assert (done.returncode, done.stdout.splitlines()) == (
        0, ["removed loss (4.0 KiB) from the shelf of hedy", "removed model (1.0 MiB) from the shelf of hedy"]
    )  # fmt: skip
    charged = {user["name"]: user["shelf_bytes"] for user in to_json(stack.status())["users"]}
    assert charged.get("hedy", 0) == 0
    done = run_shelf(stack, "ada", "--user", "hedy", "--remove-all")
    assert (done.returncode, done.stderr) == (1, "sharedkernel: there is nothing on the shelf of 'hedy'.\n")
    assert run_shelf(stack, "ada", "--user", "grace", "--remove-all").returncode == 0


async def test_what_a_notebook_uses_is_said(stack: LocalStack) -> None:
    """It has it until it lets go."""
    async with shared_kernel(stack, "grace") as client:
        await client.execute_interactive(f"{SHELVE}; used = shelf['model']; del shelf['loss']", timeout=60)
        done = await asyncio.to_thread(run_shelf, stack, "ada", "--user", "grace", "--remove-all")
        assert done.stdout.splitlines() == [
            "removed model (1.0 MiB) from the shelf of grace",
            "1.0 MiB of it are charged until notebooks that use it let go",
        ]
        listed = (await asyncio.to_thread(run_shelf, stack, "grace")).stdout.splitlines()
        assert listed[0] == "Nothing is on the shelf."
        assert listed[1].endswith(", of which 1.0 MiB were taken off and are still in use")
        reply = await client.execute_interactive("assert float(used.sum()) == 1 << 18; del used", timeout=60)
        assert reply["content"]["status"] == "ok"
    wait_until(lambda: run_shelf(stack, "grace").stdout == "Nothing is on the shelf.\n", "nothing is charged")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--remove", "x", "--remove-all"], "--remove and --remove-all do not go together; say which."),
        (["--user", "", "--remove-all"], "--user names nothing; see `sharedkernel shelf --help`."),
        (["--device", "host"], "--device goes with --remove or --remove-all."),
        (["ada"], "'ada' is not understood; see `sharedkernel shelf --help`."),
    ],
)
def test_wrong_use_is_one_sentence_and_2(arguments: list[str], sentence: str) -> None:
    """Nothing is taken off: no gateway is asked."""
    done = run_here("shelf", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"sharedkernel: {sentence}\n")


def test_names_of_others_are_only_text(stack: LocalStack) -> None:
    """What a terminal would obey is written out."""
    name = "a\\x1b[31m[bold]"
    shelve(stack, "grace", f"from sharedkernel import shelf; shelf['{name}'] = [1]")
    assert name in run_shelf(stack, "ada").stdout
    assert "\x1b" not in run_shelf(stack, "ada", "--user", "grace", "--remove-all").stdout
