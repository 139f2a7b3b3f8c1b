"""``sharedkernel class`` against a real gateway; ada is an admin."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli import support
from tests.gateway.client import Client
from tests.gateway.page.browser import Browser
from tests.warm_stack import WarmStack


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with WarmStack(users=["ada", "grace"], capacity="1GiB") as stack:
        yield stack


@pytest.fixture(autouse=True)
def no_class(stack: LocalStack) -> Iterator[None]:
    """Leave no class to the next test."""
    yield
    run(stack, "ada", "end")


def run(stack: LocalStack, user: str, *arguments: str, status: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel class`` as *user*."""
    return support.run(stack, user, "class", *arguments, status=status)


def join(stack: LocalStack, link: str) -> Client:
    """Return a client with the token that *link* gives."""

    async def accept() -> str:
        page, _, code = link.removeprefix(stack.gateway_url).partition("#")
        browser = Browser(stack.gateway_url)
        assert (await browser.request("GET", page)).status == 200
        answer = await browser.request("POST", f"{page}/accept", {"code": code})
        assert answer.status == 200, answer
        return str(answer.body["install_command"].rpartition(" ")[2])

    return Client(stack.gateway_url, asyncio.run(accept()))


@pytest.mark.heavy
def test_a_class_from_its_roster_to_its_end(stack: LocalStack, tmp_path: Path) -> None:
    """Links on standard output, one a line; what else there is to say beside them."""
    roster = tmp_path / "roster.csv"
    roster.write_text("Name,Email\nMaria Kirch,maria@x.org\nNiels Bohr,niels@x.org\n")
    begun = run(stack, "ada", str(roster), "--memory", "64MiB", "--until", "90m", status=0)
    assert "note:" not in begun.stderr
    lines = [line.split() for line in begun.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["maria", "maria@x.org"], ["niels", "niels@x.org"]]
    assert all(line[2].startswith(f"{stack.gateway_url}/sharedkernel/page/invitation#") for line in lines)
    assert begun.stderr.startswith(f"You reach the gateway at {stack.gateway_url}, which only this machine does")
    assert "Each link works once; the class ends at" in begun.stderr
    maria = join(stack, lines[0][2])
    kernel = asyncio.run(maria.start())
    shown = run(stack, "ada", "status", status=0).stdout
    assert "A class of 2, 1 of them joined; it ends at" in shown
    assert "memory 64MiB" in shown
    assert "cull after 1 h" in shown
    assert "sessions 5" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()[1:] if line}
    assert (rows["maria"][0], rows["maria"][-1]) == ("used", "1")
    assert (rows["niels"][0], rows["niels"][-1]) == ("open", "0")
    later = run(stack, "ada", "invite", "niels", "otto", "--json", status=0)
    assert "New in the class: otto." in later.stderr
    assert "before work no longer" in later.stderr
    invitations = json.loads(later.stdout)["invitations"]
    assert [invitation["user"] for invitation in invitations] == ["niels", "otto"]
    join(stack, invitations[1]["link"])
    assert "ends at" in run(stack, "ada", "until", "2h", status=0).stdout
    assert run(stack, "ada", "end", status=0).stdout == "The class is over; 1 session ended.\n"
    assert asyncio.run(maria.request("GET", f"/api/kernels/{kernel}")).status == 403
    assert "There is no class" in run(stack, "ada", "status", status=0).stdout
    assert json.loads(run(stack, "ada", "list", "--json", status=0).stdout)["class"] is None


@pytest.mark.heavy
def test_who_has_used_a_link_is_asked_about_before_another_one(stack: LocalStack, tmp_path: Path) -> None:
    """The tokens that it gave end with it, or stay good."""
    roster = tmp_path / "roster.txt"
    roster.write_text("maria\n")
    link = run(stack, "ada", str(roster), "--until", "90m", status=0).stdout.split()[1]
    first = join(stack, link)
    refused = run(stack, "ada", "invite", "maria", status=1)
    assert "--replace" in refused.stderr
    assert "--keep" in refused.stderr
    kept = run(stack, "ada", "invite", "maria", "--keep", status=0)
    second = join(stack, kept.stdout.split()[1])
    assert asyncio.run(first.request("GET", "/api/kernels")).status == 200
    replaced = run(stack, "ada", "invite", "maria", "--replace", status=0)
    assert "nor do tokens that these gave" in replaced.stderr
    join(stack, replaced.stdout.split()[1])
    assert [asyncio.run(each.request("GET", "/api/kernels")).status for each in (first, second)] == [403, 403]
    assert "choose one" in run(stack, "ada", "invite", "maria", "--replace", "--keep", status=2).stderr


@pytest.mark.heavy
def test_two_classes_at_a_time_have_names(stack: LocalStack, tmp_path: Path) -> None:
    """Each command says which one it means; one that does not is told the names. Limits without effect are noted."""
    for user, group in (("maria", "morning"), ("niels", "evening")):
        roster = tmp_path / f"{group}.txt"
        roster.write_text(f"{user}\n")
        begun = run(stack, "ada", str(roster), "--group", group, "--until", "1h", "--memory", "64GiB", status=0)
        assert "sharedkernel: note: a memory limit of 64.0 GiB" in begun.stderr, "no device has as much"
        assert begun.stdout.startswith(user)
    both = run(stack, "ada", "status", status=0).stdout
    assert "The class morning of 1, 0 of them joined" in both
    assert "The class evening of 1, 0 of them joined" in both
    assert "evening" not in run(stack, "ada", "status", "--group", "morning", status=0).stdout
    unclear = run(stack, "ada", "until", "2h", status=1)
    assert "the classes morning, evening are here; say which, with --group." in unclear.stderr
    later = run(stack, "ada", "until", "2h", "--group", "evening", status=0)
    assert "The class evening of 1" in later.stdout
    assert "New in the class: otto." in run(stack, "ada", "invite", "otto", "--group", "evening", status=0).stderr
    run(stack, "ada", "end", "--group", "morning", status=0)
    assert "The class evening of 2" in run(stack, "ada", "status", status=0).stdout


@pytest.mark.heavy
def test_what_is_refused_is_one_sentence(stack: LocalStack, tmp_path: Path) -> None:
    """The gateway's own, or the roster's; nothing has changed then."""
    roster = tmp_path / "roster.txt"
    for content, arguments, sentence in [
        ("grace\n", ["--until", "1h"], "nothing was changed: grace is a user here already"),
        ("maria k\n", ["--until", "1h"], f"{roster}, line 1: 'maria k' cannot be a user's name"),
        ("maria\n", ["--until", "soon"], "'soon' is no moment"),
    ]:
        roster.write_text(content)
        done = run(stack, "ada", str(roster), *arguments, status=1)
        assert done.stdout == ""
        assert sentence in done.stderr, done
    assert "only admins" in run(stack, "grace", "status", status=1).stderr
    assert "there is no class" in run(stack, "ada", "end", status=1).stderr
    assert "until when?" in run(stack, "ada", str(roster), status=2).stderr
