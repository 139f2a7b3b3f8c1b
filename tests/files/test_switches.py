"""What an admin may switch off, and what they limit, take back and see of users' files and terminals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sharedkernel.gateway.auth.tokens import TokenFile
from tests.executor.harness import until
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.gateway.client import PATIENCE

_CONFIG = """
c.SharedKernelGateway.revocation_seconds = 0.1
c.SharedKernelGateway.max_websockets = 3
c.SharedKernelGateway.terminals = {}
c.SharedKernelGateway.files = {}
"""


@pytest.fixture(scope="module")
def without_terminals() -> Iterator[FileStack]:
    with FileStack(config=_CONFIG.format(False, True)) as found:
        yield found


@pytest.fixture(scope="module")
def without_files() -> Iterator[FileStack]:
    with FileStack(config=_CONFIG.format(True, False)) as found:
        yield found


@pytest.mark.heavy
@pytest.mark.parametrize("switch", ["files", "terminals"])
async def test_each_is_switched_off_by_itself(switch: str, request: pytest.FixtureRequest) -> None:
    """It is refused with a sentence, and the other one works."""
    stack: FileStack = request.getfixturevalue(f"without_{switch}")
    ada = stack.client()
    for path, about in (
        ("/api/contents", "files"),
        ("/sharedkernel/files/x", "files"),
        ("/api/terminals", "terminals"),
    ):
        answer = await ada.request("GET", path)
        if about == switch:
            assert (answer.status, answer.body["reason"]) == (403, "switched_off")
            assert answer.body["message"].startswith(f"{switch} are switched off")
        else:
            assert answer.status == 200


async def begin_upload(stack: FileStack, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin an upload that says that it has more to come, and wait to be told to go on with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(
        f"PUT /sharedkernel/files/{name}?offset=0&total=5000000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: token {stack.token(ADA)}\r\nExpect: 100-continue\r\n"
        "Content-Length: 5000000032\r\n\r\n".encode()
    )
    return reader, writer


async def test_connections_are_limited_and_end_with_their_token(without_terminals: FileStack) -> None:
    """However long the body is, it is waited for; a fourth is refused; what a revoked token opened is closed."""
    stack = without_terminals
    open_ = [await begin_upload(stack, f"slow-{number}") for number in range(3)]
    for reader, writer in open_:
        assert (await asyncio.wait_for(reader.readline(), PATIENCE)) == b"HTTP/1.1 100 (Continue)\r\n"
        writer.write(b"x" * 100_000)
    one_more = await stack.client().request("GET", "/api/contents")
    assert (one_more.status, one_more.body["reason"]) == (429, "too_many_websockets")
    TokenFile(stack.directory / "tokens.json").remove(ADA)
    for reader, writer in open_:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # it is cut, with what was on its way
            await asyncio.wait_for(reader.readexactly(1000), PATIENCE)
        writer.close()


@pytest.mark.heavy
async def test_an_admin_sees_what_servers_take(without_files: FileStack) -> None:
    """In the status by user, in the metrics by kind, and how many requests there were."""
    admin = without_files.client(without_files.users[0])
    assert (await admin.request("GET", "/api/terminals")).status == 200
    assert (await admin.request("POST", "/api/kernels", {"name": "shared-gpu"})).status == 201

    async def bytes_shown() -> int:
        users = (await admin.request("GET", "/sharedkernel/api/status")).body["users"]
        return int(sum(user["server_bytes"] for user in users))

    assert await until(bytes_shown, "the memory of the server is shown") > 1 << 20
    metrics = (await admin.request("GET", "/metrics")).body
    assert 'kind="files",user="' in metrics
    assert 'sharedkernel_user_server_requests_total{kind="terminals"}' in metrics
