"""``shelf`` against a real gateway; ada is an admin."""

from __future__ import annotations

import json

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import run, shared_kernel
from tests.status.documents import to_json

#: a name that a terminal would obey
EVIL = "a\\x1b[31m[bold]"
SHELVE = (
    "import torch; from sharedkernel import shelf; shelf['model'] = torch.ones(1 << 18); shelf['loss'] = torch.ones(1)"
)


def run_shelf(stack: LocalStack, user: str, *arguments: str) -> tuple[int, str, str]:
    done = run(stack, user, "shelf", *arguments)
    return done.returncode, done.stdout, done.stderr


def shelve(stack: LocalStack, user: str, code: str) -> None:
    """Run *code* in a notebook of *user*, and shut it down."""
    with shared_kernel(stack, user) as notebook:
        assert notebook.run(code).status == "ok"


@pytest.mark.heavy
def test_shelves_are_listed_and_emptied_by_their_users_and_admins(stack: LocalStack) -> None:
    """By name and size, also of somebody without a session; others' are refused in the gateway's sentence."""
    nothing = "Nothing is on the shelf.\n"
    assert run_shelf(stack, "grace") == (0, nothing, "")
    shelve(stack, "grace", SHELVE)
    shelve(stack, "hedy", f"from sharedkernel import shelf; shelf['{EVIL}'] = [1]")
    listed = run_shelf(stack, "grace")[1].splitlines()
    assert [line.split()[:4] for line in listed if line.startswith("grace ")] == [
        ["grace", "loss", "4.0", "KiB"], ["grace", "model", "1.0", "MiB"],
    ]  # fmt: skip
    assert listed[-1] == "grace: 1.0 MiB in all"
    assert max(map(len, listed)) <= 80
    for arguments in (["--user", "grace"], ["--user", "grace", "--remove", "loss"]):
        refused = run_shelf(stack, "hedy", *arguments)
        assert refused == (1, "", "sharedkernel: only admins may see and empty other users' shelves.\n")
    everybodys = run_shelf(stack, "ada")[1]
    assert EVIL in everybodys
    assert [line.split()[0] for line in everybodys.splitlines() if line.startswith(("grace ", "hedy "))] == [
        "grace", "grace", "hedy",
    ]  # fmt: skip
    assert "model" not in run_shelf(stack, "ada", "--user", "hedy")[1]
    assert run_shelf(stack, "grace", "--remove", "loss")[1] == "removed loss (4.0 KiB) from the shelf of grace\n"
    assert run_shelf(stack, "grace", "--remove", "loss")[::2] == (
        1, "sharedkernel: there is no 'loss' on the shelf of 'grace'.\n"
    )  # fmt: skip
    status, said, _ = run_shelf(stack, "ada", "--user", "hedy", "--remove-all")
    assert (status, said.count("\n"), "\x1b" in said) == (0, 1, False)
    removed = json.loads(run_shelf(stack, "ada", "--user", "grace", "--remove-all", "--json")[1])["removed"]
    assert [entry["name"] for entry in removed] == ["model"]
    assert {user["shelf_bytes"] for user in to_json(stack.status())["users"]} <= {0}
    assert run_shelf(stack, "ada", "--user", "hedy", "--remove-all")[0] == 1
    assert json.loads(run_shelf(stack, "grace", "--json")[1]) == {"shelves": [], "away": {}}


def test_what_a_notebook_uses_is_said(stack: LocalStack) -> None:
    """It has it until it lets go."""
    with shared_kernel(stack, "grace") as notebook:
        notebook.run(f"{SHELVE}; used = shelf['model']; del shelf['loss']")
        _, said, _ = run_shelf(stack, "ada", "--user", "grace", "--remove-all")
        assert said.splitlines() == [
            "removed model (1.0 MiB) from the shelf of grace",
            "1.0 MiB of it are charged until notebooks that use it let go",
        ]
        listed = run_shelf(stack, "grace")[1].splitlines()
        assert listed[0] == "Nothing is on the shelf."
        assert listed[1].endswith(", of which 1.0 MiB were taken off and are still in use")
