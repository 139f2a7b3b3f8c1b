"""Grace, who works, and Mallory, who has a token of her own and wants more.

What is attacked elsewhere: kernels, notebook sessions, status and user names over REST and websockets in
`tests/gateway/auth/test_ownership.py`; tokens in addresses, other sites' pages in `http/test_server.py` and
guessed tokens in `auth/test_rate_limit.py`, beside it; who may speak on the control sockets in
`tests/executor/control/test_credentials.py`; shelves in `shelf/test_shelf.py`; what a session can do to users of other
uids in `isolation/test_isolation.py`; what it leaves behind in `sessions/test_leftovers.py`; nonsense of all kinds in
`tests/fuzz`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.local_stack import LocalStack
from sharedkernel.protocol import SessionRecord
from tests.fuzz.conftest import execute
from tests.gateway.client import Client
from tests.warm_stack import WarmStack


@dataclass(frozen=True)
class Scene:
    """A stack on which grace has a notebook that remembers something."""

    stack: LocalStack
    grace: Client
    mallory: Client
    kernel: str

    async def record(self, kernel: str | None = None) -> SessionRecord:
        """Return what the executor knows of a session, grace's if none is named, as only its own user may ask."""
        executor = ExecutorClient(self.stack.runtime_directory, role="command")
        await executor.connect()
        try:
            return next(record for record in await executor.sessions() if record.session == (kernel or self.kernel))
        finally:
            await executor.close()

    async def grace_still_works(self) -> None:
        """Run a cell of grace's on what her notebook remembers."""
        assert await execute(self.grace, self.kernel, "int(secret.sum())") == "6"


@pytest.fixture(scope="package")
def scene() -> Iterator[Scene]:
    """Start the stack and grace's notebook; she still has what she had when all attacks are over."""
    with WarmStack(users=["admin", "grace", "mallory"], capacity="1GiB") as stack:
        grace, mallory = (Client(stack.gateway_url, stack.token(name)) for name in ("grace", "mallory"))

        async def prepare() -> str:
            kernel = await grace.start(KERNEL_NOTEBOOK="private/plan.ipynb", KERNEL_CLIENT_KEY="graces-place")
            await execute(grace, kernel, "import torch; secret = torch.arange(4)")
            return kernel

        scene = Scene(stack, grace, mallory, asyncio.run(prepare()))
        yield scene
        asyncio.run(scene.grace_still_works())
