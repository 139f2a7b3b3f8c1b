"""Users of a real JupyterHub at the gateway: who they are, what they may use, and when the hub is away."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient

from tests.cli.support import run
from tests.gateway.auth.conftest import HubStack
from tests.gateway.client import Channels, Client
from tests.gateway.hub import SERVICE

pytest.importorskip("jupyterhub")


pytestmark = pytest.mark.heavy


@pytest.fixture
def stack(hub_stack: HubStack) -> HubStack:
    """Return the gateway whose users come from a hub."""
    return hub_stack


async def until(client: Client, status: int) -> list[Any]:
    """Ask until the answer has *status*; return all answers."""
    answers: list[Any] = []
    while not answers or answers[-1].status != status:
        answers.append(await client.request("GET", "/api/kernels"))
        await asyncio.sleep(0.05)
    return answers


async def test_a_hub_user_is_known_by_token_with_groups_as_quotas(stack: HubStack) -> None:
    """Name and groups are the hub's; where a user is in several, the quotas' order decides."""
    emil, lise = stack.client("emil"), stack.client("lise")
    await emil.start(KERNEL_USERNAME="rosa")
    await lise.start()
    identity = (await emil.request("GET", "/api/me")).body["identity"]
    assert (identity["username"], identity["admin"]) == ("emil", False)
    quotas = {}
    for client in (emil, lise):
        quotas |= (await client.request("GET", "/sharedkernel/api/quotas")).body["users"]
    assert quotas["emil"]["share"] == {"value": 2.0, "source": "config: group class"}
    assert quotas["lise"]["sessions"] == {"value": 1, "source": "config: group class"}
    assert (await emil.request("POST", "/api/kernels", {})).status == 429
    status = (await emil.request("GET", "/sharedkernel/api/status")).body
    assert {user["name"]: user["share"] for user in status["users"]} == {"emil": 2.0, "lise": 2.0}


async def test_a_class_of_hub_users_is_invited_to_the_hub(stack: HubStack, tmp_path: Path) -> None:
    """The hub signs them in, so there are no codes, and links lead to it; limits and the end are as elsewhere."""
    (tmp_path / "roster.txt").write_text("emil\nlise\n")
    options = ["--group", "other", "--until", "1h", "--hub-url", "https://hub.example.org/hub/"]
    done = await asyncio.to_thread(run, stack, "rosa", "class", str(tmp_path / "roster.txt"), *options, status=0)
    link = "https://hub.example.org/hub/user-redirect/lab"
    assert done.stdout == f"emil {link}\nlise {link}\n"
    assert done.stderr.startswith("Each signs in at the hub; the class ends at ")
    await asyncio.to_thread(run, stack, "rosa", "class", "end", "--group", "other", status=0)
    until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    path = "/sharedkernel/api/class"

    rosa, emil, lise = (stack.client(user) for user in ("rosa", "emil", "lise"))
    body = {"users": ["emil"], "limits": {"memory": "64MiB"}, "until": until}
    begun = await rosa.request("PUT", path, body)
    assert (begun.status, begun.body["codes"], begun.body["hub_url"]) == (200, {}, stack.hub.url)
    await emil.start()
    await lise.start()
    quotas = (await emil.request("GET", "/sharedkernel/api/quotas")).body["users"]["emil"]
    assert quotas["memory"] == {"value": "64MiB", "source": "class: group class"}
    assert quotas["share"] == {"value": 2.0, "source": "config: group class"}
    assert (await rosa.request("DELETE", path)).body["message"] == "The class is over; 1 session ended."
    assert (await emil.request("GET", "/api/kernels")).body == []
    assert len((await lise.request("GET", "/api/kernels")).body) == 1


async def test_an_admin_is_one_by_scope(stack: HubStack) -> None:
    """The hub says who administers; a token with fewer scopes than its user has is no admin's, or lets nobody in."""
    await stack.client("emil").start()
    rosa = stack.client("rosa")
    assert (await rosa.request("GET", "/api/me")).body["identity"]["admin"] is True
    assert len((await rosa.request("GET", "/api/kernels")).body) == 1
    lesser = Client(stack.gateway_url, stack.hub.token("rosa", scopes=[f"access:services!service={SERVICE}"]))
    assert (await lesser.request("GET", "/api/kernels")).body == []
    for token in (stack.hub.token("emil", scopes=["self"]), "0" * 32):
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 403


async def test_a_classroom_that_comes_back_at_once_is_let_in(stack: HubStack) -> None:
    """A gateway that knows none of its tokens yet does not take those that it is asking the hub about for guesses."""
    tokens = [stack.hub.token("emil") for _ in range(40)]
    stack.gateway.stop()
    stack.restart_gateway()

    AsyncHTTPClient(max_clients=len(tokens))  # this event loop's: usually ten requests at a time
    clients = [Client(stack.gateway_url, token) for token in tokens]
    answers = await asyncio.gather(*(client.request("GET", "/api/me") for client in clients))
    assert [answer.status for answer in answers] == [200] * len(tokens)


@contextlib.asynccontextmanager
async def open_in_server(stack: HubStack, gateway_url: str | None) -> AsyncIterator[Channels]:
    """Have tove's server, told of *gateway_url*, open a notebook with the shared kernel."""
    notebook = {"path": "plan.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    address = await asyncio.to_thread(stack.hub.start_server, "tove", gateway_url)
    try:
        server = Client(address, stack.hub.token("tove"))
        kernel = (await server.request("POST", "/api/sessions", notebook)).body["kernel"]["id"]
        async with server.attach(kernel) as channels:
            yield channels
    finally:
        await asyncio.to_thread(stack.hub.stop_server, "tove")


async def test_a_server_of_the_hub_brings_its_users_identity_along(stack: HubStack) -> None:
    """Its own token, which may do little at the hub, makes its notebooks the user's; so does their next server's."""
    async with open_in_server(stack, stack.gateway_url) as channels:
        scopes = stack.hub.server_token_scopes("tove")
        assert f"access:services!service={SERVICE}" in scopes
        assert not {scope.partition("!")[0] for scope in scopes} & {"users", "read:users", "servers", "tokens"}
        assert (await channels.run("kept = 6 * 7; kept"))["text"] == "42"
        sessions = (await stack.client("rosa").request("GET", "/sharedkernel/api/status")).body["sessions"]
        assert [session["user"] for session in sessions] == ["tove"]
    async with open_in_server(stack, stack.gateway_url) as channels:
        # It comes when that cell has ended, and only once the first server's relay has gone: that may take a while.
        while (await channels.run("globals().get('kept')"))["text"] != "42":
            await channels.run("%shared attach")


async def test_a_server_needs_nothing_but_an_image_in_which_it_is_installed(stack: HubStack) -> None:
    """The hub's administrator sets no variable, and keeps no token in the image: each server's own is shown."""
    command = [sys.executable, "-m", "sharedkernel", "install", "--jupyterhub"]
    environment = os.environ | {"JUPYTER_CONFIG_PATH": str(stack.hub.image / "etc" / "jupyter")}
    installed = subprocess.run(  # noqa: ASYNC221
        [*command, "--prefix", str(stack.hub.image), "--gateway-url", stack.gateway_url],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr

    async with open_in_server(stack, None) as channels:
        assert (await channels.run("6 * 7"))["text"].endswith("42")
        sessions = (await stack.client("rosa").request("GET", "/sharedkernel/api/status")).body["sessions"]
        assert "tove" in [session["user"] for session in sessions]


async def test_groups_outlive_the_gateway_and_follow_the_hub(stack: HubStack) -> None:
    """A gateway that finds a session running knows its owner's quota; a change counts with a later request."""
    emil, rosa = stack.client("emil"), stack.client("rosa")
    kernel = await emil.start()

    async def share() -> Any:
        users = (await rosa.request("GET", "/sharedkernel/api/status")).body["users"]
        return next(user["share"] for user in users if user["name"] == "emil")

    stack.gateway.kill()
    stack.restart_gateway()
    while (await rosa.request("GET", f"/api/kernels/{kernel}")).status != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert await share() == 2.0
    try:
        stack.hub.call("DELETE", "/groups/class/users", {"users": ["emil"]})
        stack.hub.call("POST", "/groups/staff/users", {"users": ["emil"]})
        while await share() != 3.0:
            assert (await emil.request("GET", "/api/kernels")).status == 200
    finally:
        stack.hub.call("POST", "/groups/class/users", {"users": ["emil"]})
        stack.hub.call("DELETE", "/groups/staff/users", {"users": ["emil"]})


async def test_a_revoked_token_stops_working_within_the_cache_time(stack: HubStack) -> None:
    """Nothing has to be restarted for it."""
    try:
        client = Client(stack.gateway_url, stack.hub.token("lise"))
        assert (await client.request("GET", "/api/kernels")).status == 200
        stack.hub.revoke_all("lise")
        answers = await until(client, 403)
        assert {answer.status for answer in answers} <= {200, 403}
    finally:
        stack.forget("lise")


async def test_a_hub_that_is_away_is_a_sentence_and_nobody_is_let_in(stack: HubStack) -> None:
    """Known tokens work until their time is over; then requests wait for the hub, and sessions run on."""
    emil = stack.client("emil")
    kernel = await emil.start()
    stack.hub.stop()
    try:
        answers = await until(emil, 503)
        assert {answer.status for answer in answers} <= {200, 503}
        assert answers[-1].body["reason"] == "identity_unavailable"
        assert answers[-1].body["message"].startswith("JupyterHub does not answer")
        assert int(answers[-1].headers["Retry-After"]) > 0
        assert (await Client(stack.gateway_url, "0" * 32).request("GET", "/api/me")).status == 503
    finally:
        stack.hub.start()
        await asyncio.to_thread(stack.hub.wait_until_ready)
    await until(emil, 200)
    async with emil.attach(kernel) as channels:
        assert (await channels.run("6 * 7"))["text"] == "42"
