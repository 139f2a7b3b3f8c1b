"""When users' own servers start and end, and who may connect to them."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from sharedkernel.executor.isolation.policy import Isolation, IsolationOptions
from sharedkernel.executor.sessions.user_servers import UserServers
from sharedkernel.paths import make_private_directory
from tests.executor.harness import Executor, until
from tests.executor.isolation import ADA, FIRST_UID, GATEWAY, ApartExecutor, as_account, needs_root

_REQUEST = b"GET /api/contents HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


async def ask(path: str) -> bytes:
    """Return a server's answer to a request."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(_REQUEST)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.fixture
def isolation(tmp_path: Path) -> Isolation:
    """Return the isolation of executors that share a folder, where users have homes of their own."""
    folder = make_private_directory(tmp_path / "run")
    return Isolation(IsolationOptions(isolate="off", homes=str(tmp_path / "homes")), folder)


@pytest.mark.heavy
async def test_one_serves_a_user_of_all_executors(isolation: Isolation, tmp_path: Path) -> None:
    """The second executor finds the first's; it outlives the one that has started it."""
    first, second = UserServers(isolation, tmp_path), UserServers(isolation, tmp_path)
    try:
        assert await first.open("ada") == await second.open("ada")
        assert (await ask(await second.open("ada"))).startswith(b"HTTP/1.1 200")
        assert list(first.memory()) == ["ada"]
        assert first.memory()["ada"] > 1 << 20
        assert second.memory() == {}
        assert await first.open("grace") != await first.open("ada")
    finally:
        first.end()
        second.end()


@pytest.mark.heavy
async def test_an_idle_one_ends(isolation: Isolation, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not while a connection is open; the next request starts another, and it is no failure."""
    servers = UserServers(isolation, tmp_path, idle_seconds=0.5)
    try:
        path = await servers.open("ada")
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(_REQUEST.replace(b"Connection: close\r\n", b""))
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await until(lambda: servers.memory() == {}, "it ends once it is idle")
        assert "ended with status" not in caplog.text
        assert (await ask(await servers.open("ada"))).startswith(b"HTTP/1.1 200")
    finally:
        servers.end()


@needs_root
async def test_only_the_gateway_s_account_connects(apart: ApartExecutor) -> None:
    """Neither another account nor the user's own; the server itself has the user's."""
    async with Executor(apart) as executor:
        path = await executor.client.open_user_server(ADA)
        assert (await ask(path)).startswith(b"HTTP/1.1 200")
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('connected')"
        for account, said in ((GATEWAY, "connected"), ("daemon", "PermissionError")):
            command = as_account(account, "-c", connect)
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
            assert said in done.stdout + done.stderr, account
        ada = await executor.notebook(ADA)
        assert (await ada.run(connect)).error == "PermissionError"
        assert pwd.getpwnam(GATEWAY).pw_gid == os.stat(path).st_gid
        assert int((await ada.run("import os; os.getuid()")).text) in range(FIRST_UID, FIRST_UID + 100)
