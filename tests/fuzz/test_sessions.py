"""A session may say anything to its executor: it is its user's code, after all. It harms nobody but itself."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st

from sharedkernel import protocol
from sharedkernel.local_stack import LocalStack
from tests.fuzz.conftest import Neighbour, attached
from tests.fuzz.fuzzing import fuzz, messages, streams
from tests.gateway.client import Client
from tests.status.documents import to_json

#: says *pieces* in the session's own name, over its own connection
_LIE = """
import contextlib, sys
from sharedkernel.ipc import current_session
link = current_session._view._link
for piece in {pieces!r}:
    with link.lock, contextlib.suppress(OSError):  # hung up on, and not connected again yet
        if link._socket is not None:
            link._socket.sendall(piece)
sys.stdout.write("said\\n")
"""


@fuzz(examples=8, honest=st.booleans(), pieces=streams(messages(protocol.ToExecutor, but=(protocol.StartSession,))))
def check_lies(client: Client, neighbour: Neighbour, honest: bool, pieces: list[bytes]) -> None:
    async def scenario() -> None:
        kernel = await client.start()
        async with attached(client, kernel) as channels:
            if honest:
                await channels.run("import torch; kept = torch.ones(1000)")
            await channels.send("execute_request", {"code": _LIE.format(pieces=pieces), "silent": False})
            await channels.until("stream", text="said\n")
            await neighbour.work()
        await client.end(kernel)

    asyncio.run(scenario())


def test_a_session_that_lies_disturbs_nobody(stack: LocalStack, neighbour: Neighbour) -> None:
    """The neighbour's cells run beside it and after it, and it can be ended."""
    check_lies(Client(stack.gateway_url, stack.token("ada")), neighbour)
    assert {session["user"] for session in to_json(stack.status())["sessions"]} == {"grace"}
    assert all(lane["holder"] is None for lane in to_json(stack.status())["lanes"])
