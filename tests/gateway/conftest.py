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

from tests.event_loop import run_until_closed
from tests.gateway.client import PATIENCE, Client
from tests.warm_stack import WarmStack

QUOTAS = {
    "default": {"memory": "50%", "sessions": 6},
    "groups": {"class": {"share": 2, "sessions": 3}},
    "users": {"linus": {"memory": "256MiB", "sessions": 1}},
}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of a test that has several, each within the patience."""
    asyncio.run(run_until_closed(asyncio.wait_for(work, 2 * PATIENCE)))


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

    def tidy(self, config: str, policy: str) -> None:
        """Have it as it was before a test, however far that came: served, with these settings, without a session."""
        services = (*self.executors.values(), self.gateway)
        for service in services:
            if not service.running:
                service.start()
        for service in services:
            service.wait_until_ready()
        if self.config_path.read_text() != config:
            self.reload(config)
        admin = self.client(self.users[0])
        if asyncio.run(are_quotas_put(admin)):
            self.reload(config)
        run(end_all(admin))
        run(set_policy(admin, policy))


def clean_gateway(stack: Stack) -> Iterator[Stack]:
    """Yield *stack* for one test; one that fails shows the services' logs, and none leaves anything to the next."""
    services = (stack.gateway, *stack.executors.values())
    before = [len(service.log_path.read_text()) for service in services]
    config, policy = stack.config_path.read_text(), asyncio.run(policy_of(stack.client(stack.users[0])))
    yield stack
    for service, seen in zip(services, before, strict=True):
        sys.stdout.write(service.log_path.read_text()[seen:])
    stack.tidy(config, policy)


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
    """Return the shared stack, cleaned after the test."""
    yield from clean_gateway(whole_stack)


@pytest.fixture(scope="session")
def two() -> Iterator[Stack]:
    """Run two executors of a GiB each, which may be killed."""
    with Stack(
        users=["ada", "grace", "linus"],
        devices=["host", "host:1"],
        capacity="1GiB",
        quotas={"users": {"linus": {"sessions": 2, "memory": "50%"}}},
        executor_arguments=["--ExecutorApp.spares_in_demand=1"],  # the one that is taken next is known
    ) as stack:
        yield stack


@pytest.fixture
def devices(two: Stack) -> Iterator[Stack]:
    """Return the stack, cleaned after the test."""
    yield from clean_gateway(two)


async def end_all(admin: Client) -> None:
    """End everybody's sessions, those that linger too."""
    names = {""}
    while names:  # until there is nothing to be ended, also of what was just being started or brought back
        kernels = (await admin.request("GET", "/api/kernels")).body
        sessions = (await admin.request("GET", "/sharedkernel/api/status")).body["sessions"]
        names = {*(kernel["id"] for kernel in kernels), *(entry["id"] for entry in sessions if entry["lingering"])}
        ends = (admin.request("DELETE", f"/api/kernels/{name}?linger=0") for name in names)
        assert {answer.status for answer in await asyncio.gather(*ends)} <= {204, 404}


async def are_quotas_put(admin: Client) -> bool:
    """Whether quotas hold that are not the configuration's."""
    users = (await admin.request("GET", "/sharedkernel/api/quotas")).body["users"]
    return any(entry["source"].startswith("put:") for quotas in users.values() for entry in quotas.values())


async def policy_of(admin: Client) -> str:
    return str((await admin.request("GET", "/sharedkernel/api/policy")).body["policy"])


async def set_policy(admin: Client, policy: str) -> None:
    if await policy_of(admin) != policy:
        assert (await admin.request("PUT", "/sharedkernel/api/policy", {"policy": policy})).status == 200
