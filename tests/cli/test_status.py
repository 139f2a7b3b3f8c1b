"""``status`` against a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import entries, run, shared_kernel, wait_until
from tests.command import run_apart


def is_idle(stack: LocalStack, user: str) -> bool:
    """Whether the only session of *user* runs nothing."""
    return [entry["state"] for entry in entries(stack, user)] == ["idle"]


@pytest.mark.heavy
def test_status_shows_sessions_as_their_user_may_see_them(stack: LocalStack) -> None:
    """Ada reads her notebook's name; Grace sees Ada's session without it; --json is the document itself."""
    with shared_kernel(stack, "hedy", "secret plan.ipynb") as notebook:
        notebook.run("import torch; kept = torch.ones(1 << 20)")
        # The executor hears of the cell's end on another way than the client.
        wait_until(lambda: is_idle(stack, "hedy"), "the cell's end")
        lines = ("hedy", "status"), ("grace", "status"), ("grace", "status", "--json")
        own, other, document = (run(stack, *line).stdout for line in lines)
    assert "secret plan" in own
    assert "idle" in own
    assert "secret" not in other
    assert "hedy" in other
    assert max(map(len, own.splitlines())) <= 80
    assert json.loads(document)["users"]


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"SHAREDKERNEL_TOKEN": "wrong"}, "does not accept this token"),
        ({"SHAREDKERNEL_GATEWAY_URL": "http://127.0.0.1:9"}, "no gateway answers at http://127.0.0.1:9"),
        ({"SHAREDKERNEL_GATEWAY_URL": "gpu.example.org"}, "'gpu.example.org' is not a gateway's address"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(stack: LocalStack, environment: dict[str, str], sentence: str) -> None:
    """A wrong token, address or gateway that is away: one line and exit code 1."""
    done = run(stack, "ada", "status", **environment)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("given", "has_hint"), [((), True), (("--gateway-url", "x", "--token", "y"), False)])
def test_who_installed_nothing_is_told_of_both_ways(tmp_path: Path, given: tuple[str, ...], has_hint: bool) -> None:
    """To install, or to type it where `sharedkernel lab` makes the gateway known; but not where that is no matter."""
    places = {"SHAREDKERNEL_GATEWAY_URL": "", "SHAREDKERNEL_TOKEN": "", "JUPYTER_CONFIG_DIR": str(tmp_path)}
    done = run_apart("status", *given, **places)
    assert done.returncode == 1
    assert ("knows no gateway yet; run `sharedkernel install" in done.stderr) == has_hint
    assert ("Beside `sharedkernel lab` it works in a terminal of that JupyterLab" in done.stderr) == has_hint


def test_options_go_before_the_environment(stack: LocalStack) -> None:
    """``--gateway-url`` and ``--token`` win over what the environment says."""
    wrong = {"SHAREDKERNEL_GATEWAY_URL": "http://127.0.0.1:9", "SHAREDKERNEL_TOKEN": "wrong"}
    done = run(stack, "ada", "status", "--gateway-url", stack.gateway_url, "--token", stack.token("ada"), **wrong)
    assert done.returncode == 0
    assert "policy fair" in done.stdout
