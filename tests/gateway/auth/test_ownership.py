"""Nobody gets in where they don't belong."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from tests.gateway.client import Client
from tests.gateway.conftest import Stack

KERNEL_ROUTES = [("GET", ""), ("POST", "/interrupt"), ("POST", "/restart"), ("DELETE", "")]
OWN_ROUTES = ["offload", "attach", "ask-for-room"]


async def test_a_user_sees_own_sessions_only_and_an_admin_has_all(stack: Stack) -> None:
    """Lists show what is one's own, and status whose notebook it is; admins see everybody's, and act on them.

    The user comes from the token alone, whatever name is claimed, in the session's environment too.
    """
    ada, grace, mary = stack.client("ada"), stack.client("grace"), stack.client("mary")
    mine = await grace.start(KERNEL_NOTEBOOK="plan.ipynb", KERNEL_USERNAME="mary", SECRET="x", KERNEL_EXTRA="kept")
    other = await mary.start()
    for client, kernels, seen in (
        (ada, {mine, other}, (mine, "plan.ipynb")),
        (grace, {mine}, (mine, "plan.ipynb")),
        (mary, {other}, (None, None)),
    ):
        assert {kernel["id"] for kernel in (await client.request("GET", "/api/kernels")).body} == kernels
        sessions = (await client.request("GET", "/sharedkernel/api/status")).body["sessions"]
        (entry,) = [entry for entry in sessions if entry["user"] == "grace"]
        assert (entry["kernel_id"], entry["notebook"]) == seen
    async with grace.attach(mine) as channels:
        code = "import os; print([os.environ.get(k) for k in ('KERNEL_USERNAME', 'SECRET', 'KERNEL_EXTRA')])"
        assert (await channels.run(code))["text"].strip() == "['grace', None, 'kept']"
    for method, action in KERNEL_ROUTES:
        assert (await ada.request(method, f"/api/kernels/{mine}{action}")).status in (200, 204)


async def test_another_users_kernel_looks_like_none_on_every_route(stack: Stack) -> None:
    """What is somebody else's answers exactly as what does not exist, and goes on undisturbed."""
    grace, mary = stack.client("grace"), stack.client("mary")
    kernel, nothing = await grace.start(), str(uuid.uuid4())
    async with grace.attach(kernel) as channels:
        await channels.run("x = 41")
        routes = [(method, f"/api/kernels/{{}}{action}") for method, action in KERNEL_ROUTES]
        routes += [("POST", f"/sharedkernel/api/sessions/{{}}/{action}") for action in OWN_ROUTES]
        for method, route in routes:
            strange = await mary.request(method, route.format(kernel))
            absent = await mary.request(method, route.format(nothing))
            assert strange.status == absent.status == 404, (method, route)
            assert str(strange.body).replace(kernel, nothing) == str(absent.body)
        for kernel_id in (kernel, nothing):
            with pytest.raises(HTTPClientError) as refused:
                await mary.attach(kernel_id).open()
            assert refused.value.code == 404
        assert (await channels.run("x + 1"))["text"] == "42"


async def test_what_status_lists_can_be_acted_on(stack: Stack) -> None:
    """Status has a session from its executor, some time before the gateway's own answer to who starts it is there."""
    grace = stack.client("grace")

    async def listed() -> list[dict[str, Any]]:
        return (await grace.request("GET", "/sharedkernel/api/status")).body["sessions"]  # type: ignore[no-any-return]

    for _ in range(3):
        starting = asyncio.create_task(grace.start())
        while not (sessions := await listed()):
            pass
        session = sessions[0]["id"]
        assert (await grace.request("POST", f"/api/kernels/{session}/interrupt")).status == 204
        assert await starting == session
        await grace.request("DELETE", f"/api/kernels/{session}?linger=0")
        while await listed():
            pass


async def test_notebook_sessions_are_each_users_own(stack: Stack) -> None:
    """`/api/sessions` keeps equal paths of two users apart and hides the others' on every route."""
    ada, grace, mary = stack.client("ada"), stack.client("grace"), stack.client("mary")
    body = {"path": "Untitled.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    first = (await grace.request("POST", "/api/sessions", body)).body
    other = (await mary.request("POST", "/api/sessions", body)).body
    again = (await grace.request("POST", "/api/sessions", body)).body
    assert first["kernel"]["id"] != other["kernel"]["id"]
    assert again["id"] == first["id"]
    assert [model["id"] for model in (await grace.request("GET", "/api/sessions")).body] == [first["id"]]
    assert len((await ada.request("GET", "/api/sessions")).body) == 2
    path = f"/api/sessions/{first['id']}"
    for method, change in (("GET", None), ("PATCH", {"path": "b"}), ("DELETE", None)):
        assert (await mary.request(method, path, change)).status == 404, method
    theirs = {"kernel": {"id": first["kernel"]["id"]}}
    assert (await mary.request("POST", "/api/sessions", {**body, "path": "b", **theirs})).status == 404
    assert (await mary.request("PATCH", f"/api/sessions/{other['id']}", theirs)).status == 404
    renamed = await grace.request("PATCH", path, {"path": "c.ipynb"})
    assert (renamed.status, renamed.body["path"]) == (200, "c.ipynb")
    assert (await grace.request("DELETE", path)).status == 204
    assert (await grace.request("GET", "/api/kernels")).body == []


async def test_a_token_counts_from_the_request_that_follows(stack: Stack) -> None:
    """Unknown, empty and removed tokens are refused; no cookie lets anybody in."""
    for token in ("", "sk-00000000-" + "0" * 64, "nonsense", stack.token("grace") + "0"):
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 403, token
    answer = await stack.client("grace").request("GET", "/api/kernels")
    assert answer.status == 200
    assert "username" not in str(answer.headers.get_list("Set-Cookie"))
    identity = (await stack.client("grace").request("GET", "/api/me")).body["identity"]
    assert (identity["username"], identity["admin"]) == ("grace", False)


async def test_nothing_but_the_needed_routes_is_there(stack: Stack) -> None:
    """No files but the user's, nothing that shows them as pages, no way to shut the server down."""
    ada = stack.client("ada")
    routes = ["/files/etc/passwd", "/view/x", "/nbconvert/html/x", "/lab"]
    answers = await asyncio.gather(*(ada.request("GET", route) for route in routes))
    assert [answer.status for answer in answers] == [404] * len(routes)
    assert (await ada.request("POST", "/api/shutdown")).status == 404
