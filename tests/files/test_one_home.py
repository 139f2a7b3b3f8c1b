"""The level `none`: one home for all, whose files are everybody's; terminals are their user's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tornado.httpclient import HTTPClientError

from sharedkernel.local_stack import LocalStack
from tests.files.test_user_server import open_terminal, upload
from tests.gateway.client import PATIENCE, Client


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client, Path]]:
    """Start a stack with one home; give ada, mallory, who tries, and the home."""
    home = tmp_path_factory.mktemp("home")
    stack = LocalStack(users=["admin", "ada", "mallory"], config="c.SharedKernelGateway.terminals = True")
    stack.executor.environment["HOME"] = str(home)
    with stack:
        assert stack.status().device.isolation == "none"
        ada, mallory = (Client(stack.gateway_url, stack.token(user)) for user in ("ada", "mallory"))
        yield ada, mallory, home


@pytest.mark.heavy
async def test_files_are_everybodys(users: tuple[Client, Client, Path]) -> None:
    """By every route, as in a session; what is hidden or outside of the home is nobody's."""
    ada, mallory, home = users
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


async def test_terminals_are_their_users(users: tuple[Client, Client, Path]) -> None:
    """Mallory neither finds, opens nor ends one of ada's."""
    ada, mallory, home = users
    name = (await ada.request("POST", "/api/terminals")).body["name"]
    assert str(home) in await asyncio.wait_for(open_terminal(ada, name), PATIENCE)
    assert (await mallory.request("GET", "/api/terminals")).body == []
    for method in ("GET", "DELETE"):
        assert (await mallory.request(method, f"/api/terminals/{name}")).status == 404
    with pytest.raises(HTTPClientError, match="404"):
        await open_terminal(mallory, name)
    assert (await ada.request("DELETE", f"/api/terminals/{name}")).status == 204
