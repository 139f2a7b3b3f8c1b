"""The level `none`: one home for all, whose files are everybody's; terminals, ports and sessions are their user's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tornado.httpclient import HTTPClientError

from sharedkernel.local_stack import LocalStack
from tests.files.test_user_server import open_terminal, upload
from tests.gateway.client import PATIENCE, Client
from tests.gateway.http.port_programs import ECHO, refusal, start


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def users(home: Path) -> Iterator[tuple[Client, Client]]:
    """Start a stack whose executor has this home; give ada, and mallory, who tries."""
    stack = LocalStack(users=["admin", "ada", "mallory"], config="c.SharedKernelGateway.terminals = True")
    stack.executor.environment["HOME"] = str(home)
    with stack:
        device = stack.status().device
        assert device is not None
        assert device.isolation == "none"
        ada, mallory = (Client(stack.gateway_url, stack.token(user)) for user in ("ada", "mallory"))
        yield ada, mallory


@pytest.mark.heavy
async def test_files_are_everybodys(users: tuple[Client, Client], home: Path) -> None:
    """By every route, as in a session; what is hidden or outside of the home is nobody's."""
    ada, mallory = users
    assert await upload(ada, "plan", b"of ada") == 204
    assert (await mallory.request("GET", "/files/plan")).body == "of ada"
    assert (await mallory.request("GET", "/api/contents/plan")).body["content"] == "of ada"
    assert await upload(mallory, "plan", b"of mallory", "&overwrite=1") == 204
    assert (home / "plan").read_text() == "of mallory"
    (home / ".secret").write_text("hidden")
    (home.parent / "outside").write_text("outside")
    for path in (".secret", "../outside", "%2e%2e/outside", str(home.parent / "outside")):
        for route in ("/files/", "/api/contents/", "/sharedkernel/files/"):
            answer = await mallory.request("GET", route + path)
            assert answer.status in (400, 403, 404), (route, path, answer)


async def test_terminals_are_their_users(users: tuple[Client, Client], home: Path) -> None:
    """Mallory neither finds, opens nor ends one of ada's."""
    ada, mallory = users
    name = (await ada.request("POST", "/api/terminals")).body["name"]
    assert str(home) in await asyncio.wait_for(open_terminal(ada, name), PATIENCE)
    assert (await mallory.request("GET", "/api/terminals")).body == []
    for method in ("GET", "DELETE"):
        assert (await mallory.request(method, f"/api/terminals/{name}")).status == 404
    with pytest.raises(HTTPClientError, match="404"):
        await open_terminal(mallory, name)
    assert (await ada.request("DELETE", f"/api/terminals/{name}")).status == 204


async def test_ports_and_sessions_are_their_users(users: tuple[Client, Client]) -> None:
    """Mallory is refused by number and by name, and is told of neither."""
    ada, mallory = users
    kernel = await ada.start()
    await mallory.start()
    port = await start(ada, kernel, ECHO)
    assert (await mallory.request("GET", "/sharedkernel/api/ports")).body["ports"] == []
    assert "is not served by a program of mallory's" in await refusal(mallory, port)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/restart")):
        assert (await mallory.request(method, f"/api/kernels/{kernel}{path}")).status == 404
    assert (await ada.request("GET", f"/api/kernels/{kernel}")).status == 200
