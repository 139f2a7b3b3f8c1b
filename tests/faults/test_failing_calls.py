"""System calls of each service that fail at random: no session ends, nothing is lost, and all recovers.

The calls fail in a library that the service loads before all others (`native/failing_calls.c`), while a file exists.
Services that end are started again, as an init system does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tornado.httpclient import HTTPError
from tornado.websocket import WebSocketError

from sharedkernel.services import Service
from tests.executor.harness import until
from tests.faults.stack import FaultStack, insist_on_session
from tests.gateway.client import Client

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="takes a C compiler"),
    pytest.mark.timeout(600),
    # clients hang up in the middle of everything
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_SOURCE = Path(__file__).with_name("native") / "failing_calls.c"
_FLAGS = ("-std=c17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
_NO_FILES = ",open,socket,accept,pipe,memfd,"
#: what a word of its command line makes of a process
_TARGETS = {
    "executor": "executor",
    "gateway": "gateway",
    "warm parent": "sharedkernel.executor.supervision.warm_parent",
}
#: which calls of which target fail, and how many of a thousand
_FAULTS = (
    ("warm parent", f"{_NO_FILES}fork,send,mmap,", 200),
    ("executor", _NO_FILES, 300),
    ("executor", ",fork,thread,write,fsync,", 500),
    ("gateway", _NO_FILES, 300),
)
_MORE_FAULTS = (
    ("executor", ",mmap,", 20),
    ("executor", ",send,", 20),
    ("gateway", ",fork,thread,write,fsync,", 500),
    ("gateway", ",mmap,", 20),
)
#: has each target load the library; tests write beside it which calls are to fail
_LOADER = """
import os, sys
from pathlib import Path

here = Path(__file__).parent
for name, word in {targets!r}.items():
    if word in sys.orig_argv and "FAILING_SWITCH" not in os.environ:
        calls, rate, seed = (here / f"settings of {{name}}").read_text().split()
        os.environ |= {{
            "LD_PRELOAD": str(here / "failing_calls.so"),
            "FAILING_SWITCH": str(here / f"failing {{name}}"),
            "FAILING_CALLS": calls,
            "FAILING_RATE": rate,
            "FAILING_SEED": seed,
        }}
        os.execv(sys.executable, sys.orig_argv)
"""
NUM_SESSIONS = 4
#: seconds for which calls fail, and that a client waits for one answer meanwhile
_FAILING, _ATTEMPT = 4.0, 3.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library; return its folder, which has the loader, too."""
    folder = tmp_path_factory.mktemp("failing")
    target = folder / "failing_calls.so"
    subprocess.run(["cc", *_FLAGS, "-o", str(target), str(_SOURCE), "-ldl", "-lpthread"], check=True)
    (folder / "sitecustomize.py").write_text(_LOADER.format(targets=_TARGETS))
    return folder


@pytest.fixture(scope="module")
def stack(library: Path) -> Iterator[FaultStack]:
    """Start the services, which have the library."""
    for fault in reversed(_FAULTS):
        _set(library, *fault)
    stack = FaultStack(users=["ada"])
    paths = [str(library), os.environ.get("PYTHONPATH", "")]
    for service in (stack.executor, stack.gateway):
        service.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with stack:
        yield stack


class Visitor:
    """A session that counts on its device, and who asks it to, again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kernel = ""
        self._pid = ""
        #: cells that were answered, and that were sent
        self.num_answered = self.num_sent = 0

    async def start(self) -> None:
        self._kernel = await insist_on_session(self._client)
        async with self._client.attach(self._kernel) as channels:
            self._pid = (await channels.run("import os, torch; done = torch.zeros(1); os.getpid()"))["text"]

    async def insist(self, deadline: float) -> None:
        """Count until *deadline*, whatever goes wrong."""
        while time.monotonic() < deadline:
            try:
                async with asyncio.timeout(_ATTEMPT), self._client.attach(self._kernel) as channels:
                    self.num_sent += 1
                    answer = await channels.run("done += 1; int(done)")
                    self.num_answered += answer["status"] == "ok"
            except (AssertionError, HTTPError, OSError, WebSocketError):  # TimeoutError is an OSError
                await asyncio.sleep(0.1)

    async def look(self) -> None:
        """Make sure that the session is there, with all that was confirmed."""

        async def answers() -> bool:
            try:
                async with asyncio.timeout(_ATTEMPT), self._client.attach(self._kernel) as channels:
                    found = await channels.run("print(os.getpid(), int(done))")
            except (AssertionError, HTTPError, OSError, WebSocketError):
                return False
            pid, count = found["text"].split()
            assert pid == self._pid
            assert self.num_answered <= int(count) <= self.num_sent
            return True

        await until(answers, "the session answers")


async def _fail(stack: FaultStack, visitors: list[Visitor], client: Client, switch: Path) -> None:
    deadline = time.monotonic() + _FAILING

    async def come_and_go() -> None:
        while time.monotonic() < deadline:
            try:
                async with asyncio.timeout(_ATTEMPT):
                    await client.end(await client.start())
            except (AssertionError, HTTPError, OSError):
                await asyncio.sleep(0.1)

    async def restart() -> None:
        while time.monotonic() < deadline:
            _restart(stack)
            await asyncio.sleep(0.2)

    with _switched_on(switch):
        await asyncio.gather(come_and_go(), restart(), *(visitor.insist(deadline) for visitor in visitors))


@contextlib.contextmanager
def _switched_on(switch: Path) -> Iterator[None]:
    """Have calls fail."""
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()


def _restart(stack: FaultStack) -> None:
    """Start services that have ended."""
    for service in (stack.executor, stack.gateway):
        if not service.running:
            service.start()


def _maps(stack: FaultStack, target: str) -> str:
    """Return what a process has mapped."""
    process = getattr(stack, target).process if target in ("executor", "gateway") else stack.warm_parent()
    assert process is not None
    return Path(f"/proc/{process.pid}/maps").read_text()


def _set(library: Path, target: str, calls: str, rate: int) -> None:
    """Choose what is to fail from the next start of *target* on."""
    (library / f"settings of {target}").write_text(f"{calls} {rate} 20261123")


def _replace(*services: Service) -> None:
    """Kill services and start them again."""
    for service in services:
        service.kill()
    for service in services:
        service.start()
        service.wait_until_ready()


@pytest.mark.parametrize(
    "faults", [pytest.param(_FAULTS, id="most"), pytest.param(_MORE_FAULTS, id="more", marks=pytest.mark.slow)]
)
async def test_sessions_outlive_calls_that_fail(
    stack: FaultStack, library: Path, faults: Sequence[tuple[str, str, int]]
) -> None:
    """They have all that was confirmed, another can start, and the next executor adopts them."""
    client = Client(stack.gateway_url, stack.token("ada"))
    visitors = [Visitor(client) for _ in range(NUM_SESSIONS)]
    await asyncio.gather(*(visitor.start() for visitor in visitors))
    for target, calls, rate in faults:
        _set(library, target, calls, rate)
        _replace(stack.executor, stack.gateway)
        await asyncio.gather(*(visitor.look() for visitor in visitors))
        visitors.append(Visitor(client))
        await visitors[-1].start()
        assert "failing_calls.so" in _maps(stack, target)
        await _fail(stack, visitors, client, library / f"failing {target}")
        _restart(stack)
        await asyncio.gather(*(visitor.look() for visitor in visitors))
    _replace(stack.executor)
    await asyncio.gather(*(visitor.look() for visitor in visitors))
    late = Visitor(client)
    await late.start()
    await late.look()
    answer = await client.request("GET", "/api/kernels")
    for kernel in answer.body:
        await client.request("DELETE", f"/api/kernels/{kernel['id']}?linger=0")
