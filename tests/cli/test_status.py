"""``status`` and ``top`` against a real gateway."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import COMMAND, PATIENCE, shared_kernel, wait_until
from tests.status.documents import to_json


def status(stack: LocalStack, user: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel status`` as *user*."""
    variables = os.environ | stack.client_environment(user) | {"COLUMNS": "80"} | environment
    return subprocess.run(
        [*COMMAND, "status", *arguments], capture_output=True, text=True, timeout=60, env=variables, check=False
    )


def is_idle(stack: LocalStack, user: str) -> bool:
    """Whether the only session of *user* runs nothing."""
    return [entry["state"] for entry in to_json(stack.status())["sessions"] if entry["user"] == user] == ["idle"]


def test_status_shows_sessions_as_their_user_may_see_them(stack: LocalStack) -> None:
    """Ada reads her notebook's name; Grace sees Ada's session without it; --json is the document itself."""

    async def look() -> tuple[str, str, str]:
        async with shared_kernel(stack, "hedy", "secret plan.ipynb") as client:
            await client.execute_interactive("import torch; kept = torch.ones(1 << 20)", timeout=60)
            # The executor hears of the cell's end on another way than the client.
            wait_until(lambda: is_idle(stack, "hedy"), "the cell's end")
            own, other, document = (
                status(stack, "hedy").stdout, status(stack, "grace").stdout, status(stack, "grace", "--json").stdout
            )  # fmt: skip
        return own, other, document

    own, other, document = asyncio.run(look())
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
    done = status(stack, "ada", **environment)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("given", "has_hint"), [((), True), (("--gateway-url", "x", "--token", "y"), False)])
def test_who_installed_nothing_is_told_of_both_ways(tmp_path: Path, given: tuple[str, ...], has_hint: bool) -> None:
    """To install, or to type it where `sharedkernel lab` makes the gateway known; but not where that is no matter."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHAREDKERNEL_")}
    variables |= {"JUPYTER_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "status", *given], capture_output=True, text=True, timeout=60, env=variables, check=False
    )
    assert done.returncode == 1
    assert ("knows no gateway yet; run `sharedkernel install" in done.stderr) == has_hint
    assert ("Beside `sharedkernel lab` it works in a terminal of that JupyterLab" in done.stderr) == has_hint


def test_options_go_before_the_environment(stack: LocalStack) -> None:
    """``--gateway-url`` and ``--token`` win over what the environment says."""
    wrong = {"SHAREDKERNEL_GATEWAY_URL": "http://127.0.0.1:9", "SHAREDKERNEL_TOKEN": "wrong"}
    done = status(stack, "ada", "--gateway-url", stack.gateway_url, "--token", stack.token("ada"), **wrong)
    assert done.returncode == 0
    assert "policy fair" in done.stdout


class Terminal:
    """The far end of a pseudo-terminal of 24 by 80, with what was written to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_until(self, *words: str, timeout: float = PATIENCE) -> None:
        """Read until one piece of new output holds all *words*."""
        seen = ""
        deadline = time.monotonic() + timeout
        while not all(word in seen for word in words):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._descriptor], [], [], max(left, 0))
            assert ready, f"{words} not shown within {timeout} s; the terminal shows: {seen[-2000:]!r}"
            seen += os.read(self._descriptor, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type *keys*."""
        os.write(self._descriptor, keys.encode())


@contextmanager
def top(stack: LocalStack) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run ``sharedkernel top`` in a terminal."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = os.environ | stack.client_environment("ada") | {"TERM": "xterm"}
    for size in ("COLUMNS", "LINES"):
        environment.pop(size, None)
    process = subprocess.Popen(
        [*COMMAND, "top"], stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(far)
    try:
        yield Terminal(near), process
    finally:
        process.kill()
        process.wait()
        os.close(near)


def test_top_outlives_its_gateway(stack: LocalStack) -> None:
    """It says that the gateway is away, shows new figures when it is back, and ends with q."""
    with top(stack) as (terminal, process):
        terminal.read_until("q: quit", "policy fair")
        stack.gateway.stop()
        try:
            terminal.read_until("no gateway answers", "trying again")
        finally:
            stack.gateway.start()
            stack.gateway.wait_until_ready()
        terminal.read_until("q: quit", "policy fair")
        terminal.press("q")
        assert process.wait(PATIENCE) == 0


def test_top_ends_with_ctrl_c(stack: LocalStack) -> None:
    """Ctrl-C ends it without a word."""
    with top(stack) as (terminal, process):
        terminal.read_until("q: quit")
        terminal.press("\x03")
        assert process.wait(PATIENCE) == 0
