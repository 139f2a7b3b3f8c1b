"""``quota`` and ``policy`` against a real gateway; ada is an admin."""

from __future__ import annotations

import json

import pytest

from sharedkernel.local_stack import LocalStack
from sharedkernel.units import format_bytes
from tests.cli.support import run

pytestmark = pytest.mark.usefixtures("as_before")

OTHERS = "no token, session or limit of 'ada' is known here, or you are no admin, who alone sees others'."


def cells(output: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in output.splitlines()]


def test_an_admin_changes_a_quota_and_takes_it_back(stack: LocalStack) -> None:
    """What was changed in this way only; the rest stays, and each value says where it comes from."""
    done = run(stack, "ada", "quota", "grace", "--memory", "512 MiB", "--cull-after", "2h", "--sessions", "none")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = {row[0]: row[1:] for row in cells(done.stdout) if row}
    assert rows["memory"] == ["512", "MiB", "set", "by", "hand:", "user", "grace"]
    assert rows["cull_after"] == ["2", "h", "0", "m", "set", "by", "hand:", "user", "grace"]
    assert rows["sessions"] == ["none", "set", "by", "hand:", "user", "grace"]
    assert rows["share"] == ["2", "config:", "user", "grace"]
    [row] = [row for row in cells(run(stack, "ada", "quota").stdout) if row[:1] == ["grace"]]
    assert row[:5] == ["grace", "512", "MiB", "2", "none"]
    # users see their own alone
    assert list(json.loads(run(stack, "grace", "quota", "--json").stdout)["users"]) == ["grace"]
    done = run(stack, "ada", "quota", "grace", "--reset", "--json")
    assert json.loads(done.stdout)["users"]["grace"]["memory"]["source"] == "built in"


@pytest.mark.heavy
def test_a_group_and_the_default_are_changed_and_reset(stack: LocalStack) -> None:
    """One group's alone, then all."""
    for change in ("--default --share 3", "--group staff --share 4", "--group staff --reset"):
        run(stack, "ada", "quota", *change.split(), status=0)
    for expected in ({"value": 3.0, "source": "put: default"}, {"value": 1.0, "source": "built in"}):
        hedy = json.loads(run(stack, "hedy", "quota", "--json").stdout)["users"]["hedy"]
        assert hedy["share"] == expected
        run(stack, "ada", "quota", "--reset", status=0)


def test_what_may_not_be_meant_is_done_and_noted(stack: LocalStack) -> None:
    """A limit larger than any device, and a name without a token; other changes are not commented on."""
    done = run(stack, "ada", "quota", "grace", "--memory", "900GiB")
    capacity = format_bytes(stack.status().device.capacity_bytes)
    note = f"a memory limit of 900 GiB for grace limits nothing: the largest device has {capacity}."
    assert (done.returncode, done.stderr) == (0, f"sharedkernel: note: {note}\n")
    assert "900GiB" in done.stdout
    done = run(stack, "ada", "quota", "graec", "--share", "2")
    assert (done.returncode, done.stderr) == (0, "sharedkernel: note: no token belongs to graec; check the name.\n")
    assert "graec" in [user.name for user in stack.status().users]
    done = run(stack, "ada", "quota", "graec", "--reset")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "No limits are set for graec any more.\n"
    assert json.loads(run(stack, "ada", "quota", "graec", "--reset", "--json").stdout) == {"users": {}}
    assert "graec" not in [user.name for user in stack.status().users]
    assert "limits nothing" in run(stack, "ada", "quota", "--group", "staff", "--memory", "900GiB").stderr
    for arguments in (["grace", "--memory", "1MiB"], ["grace", "--memory", "none"]):
        assert run(stack, "ada", "quota", *arguments).stderr == ""


def test_what_is_refused_is_one_sentence(stack: LocalStack) -> None:
    """The gateway's own; nothing has changed then."""
    for arguments, sentence in [
        (("hedy", ["quota", "grace", "--share", "9"]), "only admins may change quotas."),
        (("hedy", ["quota", "ada"]), OTHERS),
        (("hedy", ["policy", "srtf"]), "only admins may change the policy."),
    ]:  # fmt: skip
        done = run(stack, arguments[0], *arguments[1])
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sharedkernel: {sentence}\n")
    done = run(stack, "ada", "quota", "grace", "--memory", "lots")
    assert done.returncode == 1
    assert done.stderr.startswith("sharedkernel: nothing was changed: ")
    assert "'lots' is not an amount of memory" in done.stderr
    assert run(stack, "ada", "policy", "best").returncode == 1
    limits = json.loads(run(stack, "grace", "quota", "--json").stdout)["users"]["grace"]
    assert (limits["share"]["value"], limits["memory"]["value"]) == (2, None)


def test_an_admin_changes_the_policy(stack: LocalStack) -> None:
    """At once, on each device."""
    assert "fair" in run(stack, "hedy", "policy").stdout.splitlines()[0]
    done = run(stack, "ada", "policy", "srtf")
    assert done.stdout.splitlines()[0].endswith(": srtf")
    assert json.loads(run(stack, "hedy", "policy", "--json").stdout)["policy"] == "srtf"
