"""The event loop of a test that is a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tornado.ioloop import IOLoop


async def run_until_closed(work: Awaitable[None]) -> None:
    """Await *work*, and then that tornado's sockets are closed, which takes some turns of the loop.

    A client that was told to close does so when it has read its server's answer.
    """
    await work
    loop = IOLoop.current(instance=False)
    for _ in range(50):
        if loop is None or not loop.handlers:  # type: ignore[attr-defined]
            break
        await asyncio.sleep(0)
