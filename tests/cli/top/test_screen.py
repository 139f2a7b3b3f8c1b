"""`sharedkernel top` in a terminal, against a real gateway; ada is an admin."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psutil
import pytest

from sharedkernel.local_stack import LocalStack
from tests.asking import answering
from tests.cli.support import entries, run, shared_kernel, wait_until
from tests.cli.test_status import is_idle
from tests.cli.top.terminal import TOP, Terminal, terminal
from tests.status.documents import MIB, document, session, user


def visible(shown: Terminal) -> list[str]:
    """Return the notebooks in the table, from top to bottom."""
    return re.findall(r" (nb-\d{3})\.ipynb", "\n".join(shown.lines[3:21]))


def following(order: list[str], page: list[str]) -> list[list[str]]:
    """Return what may be on the page after *page*: further down, and nothing left out."""
    place = order.index(page[0])
    assert page == order[place : place + len(page)]
    nexts = range(place + 1, min(place + len(page), len(order) - len(page)) + 1)
    return [order[place : place + len(page)] for place in nexts]


@pytest.mark.heavy
def test_each_of_200_sessions_can_be_reached() -> None:
    """By End, by sorting and by a filter; the selected one is shown in full below."""
    sessions = [
        session(f"s{i:03}", f"u{i % 50:02}", "running" if i == 77 else "idle", notebook=f"work/nb-{i:03}.ipynb",
                persistent_bytes=i * MIB)
        for i in range(200)
    ]  # fmt: skip
    status = document(sessions=sessions, users=[user(f"u{i:02}") for i in range(50)])
    with (
        answering(msgspec.json.encode(status)) as url,
        terminal({"SHAREDKERNEL_GATEWAY_URL": url, "SHAREDKERNEL_TOKEN": "any"}) as shown,
    ):
        shown.wait_for("200 sessions · 1 running", "q quit", "u27 · work/nb-077.ipynb · running")
        shown.press("end")
        shown.wait_for("u49 · work/nb-199.ipynb", "nb-149.ipynb")
        shown.press("home")
        shown.wait_for("u27 · work/nb-077.ipynb")
        order = [f"nb-{i:03}" for i in sorted(range(200), key=lambda i: (i != 77, i % 50, i))]
        page = visible(shown)
        while page[-1] != order[-1]:
            begins = following(order, page)
            shown.press("page down")
            shown.wait(lambda begins=begins: visible(shown) in begins, "the next page")
            page = visible(shown)
        shown.press("s", "s", "s", "s")  # user, notebook, state, memory
        shown.wait_for("memory▼")
        shown.press("home")
        shown.wait(lambda: "nb-199" in shown.lines[3], "the largest first")
        shown.press("r")
        shown.wait(lambda: "nb-000" in shown.lines[3], "the smallest first")
        shown.filter("nb-123", '1 of 200 sessions with "nb-123"')
        shown.press("2")
        shown.wait_for("0 of 50 people")
        shown.press("escape")
        shown.wait_for("50 people")
        assert all(len(line) <= 80 for line in shown.lines)


@contextmanager
def selected(stack: LocalStack, user: str, notebook: str) -> Iterator[Terminal]:
    """Run `top` as *user* with the session of *notebook* selected."""
    with terminal(stack.client_environment(user)) as shown:
        shown.wait_for("policy fair", notebook)
        shown.filter(notebook, f'1 of 2 sessions with "{notebook}"')
        yield shown


@pytest.mark.heavy
@pytest.mark.usefixtures("as_before")
def test_a_session_is_offloaded_and_stopped_after_a_question(stack: LocalStack) -> None:
    """N and Escape leave it alone, y does it; only its user and admins may."""
    run(stack, "ada", "quota", "grace", "--linger", "10m", status=0)
    with shared_kernel(stack, "grace", "train.ipynb") as notebook, shared_kernel(stack, "hedy", "other.ipynb"):
        notebook.run("import torch; kept = torch.ones(1 << 22)")
        wait_until(lambda: is_idle(stack, "grace"), "it is idle")
        with selected(stack, "grace", "train") as shown:
            for no in ("n", "escape"):
                shown.press("x")
                shown.wait_for("Stop train.ipynb of grace?", "%shared attach")
                shown.press(no)
                shown.wait(lambda: "Stop train" not in shown.text, "the question is gone")
            assert entries(stack, "grace")[0]["lingering"] is False
            shown.press("o")
            shown.wait_for("Offload train.ipynb of grace?")
            shown.press("y")
            shown.wait_for("offloaded train.ipynb of grace")
            assert entries(stack, "grace")[0]["state"] == "offloaded"
        with selected(stack, "ada", "train") as shown:
            shown.press("x")
            shown.wait_for("Stop train.ipynb of grace?")
            shown.press("y")
            shown.wait_for("stopped train.ipynb of grace", "shut down")
        assert entries(stack, "grace")[0]["lingering"]
        with selected(stack, "hedy", "grace") as shown:
            shown.press("x")
            shown.wait_for("only grace or an admin can stop it.")
        run(stack, "ada", "stop", "--user", "grace", "--now", status=0)


@pytest.mark.heavy
def test_it_outlives_its_gateway(stack: LocalStack) -> None:
    """It says that the gateway is away, shows new figures when it is back, and ends with q."""
    with terminal(stack.client_environment("ada")) as shown:
        shown.wait_for("0 sessions", "policy fair")
        stack.gateway.stop()
        try:
            shown.wait_for("no gateway answers", "trying again")
        finally:
            stack.gateway.start()
            stack.gateway.wait_until_ready()
        shown.wait_for("0 sessions")
        shown.press("q")
        assert shown.finish() == 0


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_the_terminal_is_left_as_it_was(stack: LocalStack, how: str) -> None:
    """Its modes are as before, its other screen is gone and its cursor is back; nothing is said."""
    command = f"stty -g; {TOP}; echo ended with $?; stty -g"
    with terminal(stack.client_environment("ada"), command) as shown:
        shown.wait_for("policy fair", "q quit")
        if how == "Ctrl-C":
            shown.press("ctrl-c")
        else:
            [process] = psutil.Process(shown.process.pid).children()
            process.send_signal(signal.Signals[how])
        assert shown.finish() == 0
        before, _, after = shown.written.partition(b"\x1b[?1049h")
        _, _, after = after.partition(b"\x1b[?1049l")
        assert b"\x1b[?1049h" not in after
        assert shown.written.rindex(b"\x1b[?25h") > shown.written.rindex(b"\x1b[?25l")
        assert re.sub(rb"\x1b\[[?<\d]*[a-z]", b"", after).split() == [b"ended", b"with", b"0", before.split()[0]]


def test_what_cannot_be_shown_is_said_before_anything_is(stack: LocalStack) -> None:
    """A wrong token, and no terminal: one line, and the terminal is never taken."""
    done = run(stack, "ada", "top")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sharedkernel: `top` needs a terminal; `sharedkernel status` prints the same once.\n"
    with terminal(stack.client_environment("ada") | {"SHAREDKERNEL_TOKEN": "wrong"}) as shown:
        assert shown.finish() == 1
        assert "does not accept this token" in " ".join(shown.text.split())
        assert b"\x1b[?1049h" not in shown.written
        assert shown.text.count("sharedkernel:") == 1
