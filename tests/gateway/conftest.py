"""A real executor and a real gateway, shared by these tests: ada is an admin, the others are not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.client import PATIENCE, Client
from tests.warm_stack import WarmStack

QUOTAS = {
    "default": {"memory": "50%", "sessions": 6},
    "groups": {"class": {"share": 2, "sessions": 3}},
    "users": {"linus": {"memory": "256MiB", "sessions": 1}},
}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; none takes longer than the patience."""
    asyncio.run(asyncio.wait_for(work, 2 * PATIENCE))


def wait_for(is_so: Callable[[], Any]) -> Any:
    """Return the first true value of *is_so*."""
    deadline = time.monotonic() + PATIENCE
    while not (value := is_so()):
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.02)
    return value


class Stack(WarmStack):
    """Adds what only tests do to a gateway."""

    def client(self, user: str) -> Client:
        return Client(self.gateway_url, self.token(user))

    @property
    def config_path(self) -> Path:
        return self.directory / "jupyter_sharedkernel_config.py"

    def gateway_log(self) -> str:
        return self.gateway.log_path.read_text()

    def reload(self, config: str) -> str:
        """Give the gateway another configuration; return what it logged about it."""
        before = len(self.gateway_log())
        self.config_path.write_text(config)
        process = self.gateway.process
        assert process is not None
        os.kill(process.pid, signal.SIGHUP)
        return str(wait_for(lambda: "configuration was" in (news := self.gateway_log()[before:]) and news))

    def restart_gateway(self) -> None:
        self.gateway.start()
        self.gateway.wait_until_ready()


@pytest.fixture(scope="session")
def whole_stack() -> Iterator[Stack]:
    with Stack(
        users=["ada", "grace", "linus", "mary"],
        capacity="2GiB",
        quotas=QUOTAS,
        groups={"class": ["grace", "mary"]},
        config="c.SessionKernels.cull_interval = 1",
    ) as stack:
        yield stack


@pytest.fixture
def stack(whole_stack: Stack) -> Iterator[Stack]:
    """Return the shared stack; every session that a test leaves is ended, and a test that fails shows the logs."""
    before = [len(service.log_path.read_text()) for service in (whole_stack.gateway, whole_stack.executor)]
    yield whole_stack
    for service, seen in zip((whole_stack.gateway, whole_stack.executor), before, strict=True):
        sys.stdout.write(service.log_path.read_text()[seen:])
    run(end_all(whole_stack.client("ada")))


@pytest.fixture(scope="module")
def two() -> Iterator[Stack]:
    """Run two executors of a GiB each, which may be killed."""
    with Stack(
        users=["ada", "grace", "linus"],
        executors=["host", "host:1"],
        capacity="1GiB",
        quotas={"users": {"linus": {"sessions": 2, "memory": "50%"}}},
    ) as stack:
        yield stack


@pytest.fixture
def devices(two: Stack) -> Iterator[Stack]:
    """Return the stack; sessions that a test leaves are ended, and a test that fails shows the gateway's log."""
    seen = len(two.gateway_log())
    yield two
    sys.stdout.write(two.gateway_log()[seen:])
    for executor in two.executors.values():
        if not executor.running:
            executor.start()
    two.gateway.wait_until_ready()
    run(end_all(two.client("ada")))


async def end_all(admin: Client) -> None:
    """End everybody's sessions."""
    kernels = (await admin.request("GET", "/api/kernels")).body
    await asyncio.gather(*(admin.end(kernel["id"]) for kernel in kernels))
