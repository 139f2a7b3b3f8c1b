"""What an admin may switch off, and what they limit, take back and see of users' files, terminals and ports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.gateway.auth.tokens import TokenFile
from tests.executor.harness import until
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.gateway.client import PATIENCE, Client
from tests.gateway.http.port_programs import refusal
from tests.gateway.test_command import in_process

TOKEN = "a-token-of-a-test"


@pytest.mark.parametrize("switch", ["files", "terminals", "ports"])
def test_each_is_switched_off_by_itself(switch: str, tmp_path: Path) -> None:
    """It is refused with a sentence that names the setting, and the others are not."""
    config = tmp_path / "config.py"
    config.write_text(
        f"c.IdentityProvider.token = {TOKEN!r}\nc.SharedKernelGateway.terminals = True\n"
        f"c.SharedKernelGateway.{switch} = False\n"
    )
    paths = {
        "/api/contents": "files", "/sharedkernel/files/x": "files", "/api/terminals": "terminals",
        "/sharedkernel/api/ports": "ports", "/sharedkernel/api/ports/6006": "ports",
    }  # fmt: skip

    async def scenario(gateway: SharedKernelGateway) -> None:
        await asyncio.sleep(0)  # it binds its port in the loop's first round
        user = Client(f"http://127.0.0.1:{gateway.port}", TOKEN)
        for path, about in paths.items():
            answer = await user.request("GET", path)
            if about == switch:
                assert (answer.status, f"c.SharedKernelGateway.{switch}" in answer.body["message"]) == (403, True)
                assert answer.body["reason"] == ("not_allowed" if switch == "ports" else "switched_off")
            else:
                assert answer.status != 403
        if switch == "ports":
            assert "forwards no ports" in await refusal(user, 6006)

    with in_process("--config", str(config), directory=tmp_path) as (gateway, loop):
        loop.run(scenario(gateway))


async def begin_upload(stack: FileStack, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin an upload that says that it has more to come, and wait to be told to go on with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(
        f"PUT /sharedkernel/files/{name}?offset=0&total=5000000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: token {stack.token(ADA)}\r\nExpect: 100-continue\r\n"
        "Content-Length: 5000000032\r\n\r\n".encode()
    )
    return reader, writer


async def test_connections_are_limited_and_end_with_their_token() -> None:
    """However long the body is, it is waited for; a fourth is refused; what a revoked token opened is closed."""
    config = "c.SharedKernelGateway.revocation_seconds = 0.1\nc.SharedKernelGateway.max_websockets = 3"
    with FileStack(config=config) as stack:
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
async def test_an_admin_sees_what_servers_take(homes_stack: FileStack) -> None:
    """In the status by user, in the metrics by kind, and how many requests there were."""
    admin = homes_stack.client(homes_stack.users[0])
    assert (await admin.request("GET", "/api/terminals")).status == 200
    assert (await admin.request("POST", "/api/kernels", {"name": "shared-gpu"})).status == 201

    async def bytes_shown() -> int:
        users = (await admin.request("GET", "/sharedkernel/api/status")).body["users"]
        return int(sum(user["server_bytes"] for user in users))

    assert await until(bytes_shown, "the memory of the server is shown") > 1 << 20
    metrics = (await admin.request("GET", "/metrics")).body
    assert 'kind="files",user="' in metrics
    assert 'sharedkernel_user_server_requests_total{kind="terminals"}' in metrics
