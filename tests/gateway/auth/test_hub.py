"""Users of a real JupyterHub at the gateway: who they are, what they may use, signing in on the page, an absent hub."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tornado.httpclient import AsyncHTTPClient

from tests.cli.support import run
from tests.gateway.auth.conftest import MOST_WRONG_TOKENS, HubStack
from tests.gateway.client import Answer, Channels, Client
from tests.gateway.hub import SERVICE
from tests.gateway.page.browser import FORM, Browser

pytest.importorskip("jupyterhub")
pytestmark = pytest.mark.heavy

BEGIN = "/sharedkernel/page/hub"
ME = "/sharedkernel/page/me"


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
    """Name and groups are the hub's; where a user is in several, the quotas' order decides.

    The hub says who administers; a token with fewer scopes than its user has is no admin's, or lets nobody in.
    """
    emil, lise, rosa = (stack.client(user) for user in ("emil", "lise", "rosa"))
    await emil.start(KERNEL_USERNAME="rosa")
    await lise.start()
    for client, known_as in ((emil, ("emil", False)), (rosa, ("rosa", True))):
        identity = (await client.request("GET", "/api/me")).body["identity"]
        assert (identity["username"], identity["admin"]) == known_as
    quotas = {}
    for client in (emil, lise):
        quotas |= (await client.request("GET", "/sharedkernel/api/quotas")).body["users"]
    assert quotas["emil"]["share"] == {"value": 2.0, "source": "config: group class"}
    assert quotas["lise"]["sessions"] == {"value": 1, "source": "config: group class"}
    assert (await emil.request("POST", "/api/kernels", {})).status == 429
    status = (await emil.request("GET", "/sharedkernel/api/status")).body
    assert {user["name"]: user["share"] for user in status["users"]} == {"emil": 2.0, "lise": 2.0}

    lesser = Client(stack.gateway_url, stack.hub.token("rosa", scopes=[f"access:services!service={SERVICE}"]))
    assert [len((await client.request("GET", "/api/kernels")).body) for client in (rosa, lesser)] == [2, 0]
    for token in (stack.hub.token("emil", scopes=["self"]), "0" * 32):
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 403


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


@contextlib.asynccontextmanager
async def open_in_server(stack: HubStack, gateway_url: str | None) -> AsyncIterator[Channels]:
    """Have tove's server, told of *gateway_url*, open a notebook with the shared kernel; it is hers alone."""
    notebook = {"path": "plan.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    address = await asyncio.to_thread(stack.hub.start_server, "tove", gateway_url)
    try:
        server = Client(address, stack.hub.token("tove"))
        kernel = (await server.request("POST", "/api/sessions", notebook)).body["kernel"]["id"]
        async with server.attach(kernel) as channels:
            assert (await channels.run("6 * 7"))["text"].endswith("42")
            sessions = (await stack.client("rosa").request("GET", "/sharedkernel/api/status")).body["sessions"]
            assert {session["user"] for session in sessions} == {"tove"}
            yield channels
    finally:
        await asyncio.to_thread(stack.hub.stop_server, "tove")


async def test_a_server_of_the_hub_brings_its_users_identity_along(stack: HubStack) -> None:
    """Its own token, which may do little at the hub, makes its notebooks the user's; so does their next server's.

    That is told nothing by the hub's administrator, who keeps no token in the image in which it is installed.
    """
    async with open_in_server(stack, stack.gateway_url) as channels:
        scopes = stack.hub.server_token_scopes("tove")
        assert f"access:services!service={SERVICE}" in scopes
        assert not {scope.partition("!")[0] for scope in scopes} & {"users", "read:users", "servers", "tokens"}
        assert (await channels.run("kept = 6 * 7; kept"))["text"] == "42"
    command = [sys.executable, "-m", "sharedkernel", "install", "--jupyterhub"]
    environment = os.environ | {"JUPYTER_CONFIG_PATH": str(stack.hub.image / "etc" / "jupyter")}
    installed = subprocess.run(  # noqa: ASYNC221
        [*command, "--prefix", str(stack.hub.image), "--gateway-url", stack.gateway_url],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    async with open_in_server(stack, None) as channels:
        # It comes when that cell has ended, and only once the first server's relay has gone: that may take a while.
        while (await channels.run("globals().get('kept')"))["text"] != "42":
            await channels.run("%shared attach")


async def test_groups_outlive_the_gateway_and_follow_the_hub(stack: HubStack) -> None:
    """A gateway that finds a session running knows its owner's quota; a change counts with a later request.

    A classroom that comes back to it at once is let in: it does not take tokens that it asks the hub about for guesses.
    """
    emil, rosa = stack.client("emil"), stack.client("rosa")
    kernel = await emil.start()
    classroom = [Client(stack.gateway_url, stack.hub.token("lise")) for _ in range(MOST_WRONG_TOKENS + 5)]

    async def share() -> Any:
        users = (await rosa.request("GET", "/sharedkernel/api/status")).body["users"]
        return next(user["share"] for user in users if user["name"] == "emil")

    stack.gateway.kill()
    stack.restart_gateway()
    AsyncHTTPClient(max_clients=len(classroom))  # this event loop's: usually ten requests at a time
    answers = await asyncio.gather(*(client.request("GET", "/api/me") for client in classroom))
    assert [answer.status for answer in answers] == [200] * len(classroom)
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


class Person:
    """Somebody with a browser; its cookies for the hub and for the gateway are kept apart."""

    def __init__(self, stack: HubStack, name: str) -> None:
        self.name = name
        self.gateway = Browser(stack.gateway_url)
        self.hub = Browser(stack.hub.url.removesuffix("/hub"))

    async def begin(self) -> str:
        """Click on the link of the gateway's form; return where that leads."""
        form = await self.gateway.request("GET", FORM)
        assert f'href="{BEGIN}"' in form.body
        begun = await self.gateway.request("GET", BEGIN)
        assert begun.status == 302
        address = begun.headers["Location"]
        assert address.startswith(f"{self.hub.url}/hub/api/oauth2/authorize?")
        return address

    async def go_through_hub(self, address: str) -> str:
        """Sign in at the hub; return where it sends the browser back."""
        answer = await self.hub.request("GET", address.removeprefix(self.hub.url))
        while not answer.headers["Location"].startswith(self.gateway.url):
            place = answer.headers["Location"].removeprefix(self.hub.url)
            if place.startswith("/hub/login"):
                form = await self.hub.request("GET", place)
                field = re.search(r'name="_xsrf" value="([^"]+)"', form.body)
                assert field is not None
                login = {"username": self.name, "password": "any", "_xsrf": field[1]}
                answer = await self.hub.request("POST", place, login, form=True)
            else:
                answer = await self.hub.request("GET", place)
            assert answer.status == 302, answer
        return str(answer.headers["Location"]).removeprefix(self.gateway.url)

    async def sign_in(self) -> Answer:
        return await self.gateway.request("GET", await self.go_through_hub(await self.begin()))


async def test_who_is_signed_in_at_the_hub_is_on_the_page(stack: HubStack) -> None:
    """Without a token to type; the page shows what its user may see, until the hub takes the token back.

    That holds of any token, within the time for which the hub's answer is kept.
    """
    emil = Person(stack, "emil")
    done = await emil.sign_in()
    assert (done.status, done.headers["Location"]) == (303, "/")
    name = next(name for name in emil.gateway.cookies if name.startswith("sharedkernel-page-"))
    flags = emil.gateway.flags[name]
    assert (flags["httponly"], flags["samesite"], flags["path"]) == (True, "Lax", "/")
    me = (await emil.gateway.request("GET", ME)).body
    assert (me["user"], me["admin"], me["auth"]) == ("emil", False, "hub")
    quotas = (await emil.gateway.request("GET", "/sharedkernel/api/quotas")).body["users"]["emil"]
    assert quotas["share"] == {"value": 2.0, "source": "config: group class"}
    client = stack.client("emil")
    assert (await client.request("GET", "/api/kernels")).status == 200
    stack.hub.revoke_all("emil")
    stack.forget("emil")
    assert {answer.status for answer in await until(client, 403)} <= {200, 403}
    while (await emil.gateway.request("GET", ME)).status == 200:
        pass  # for as long as the hub's answer is kept
    assert (await emil.gateway.request("GET", "/")).headers["Location"] == FORM
    audit = (stack.runtime_directory / "audit.jsonl").read_text()
    assert '"action": "sign in", "by": "JupyterHub"' in audit


async def test_a_hub_that_is_away_is_a_sentence_and_nobody_is_let_in(stack: HubStack) -> None:
    """Known tokens work until their time is over; then requests wait for the hub, and sessions run on.

    The form says so, too; then an admin by scope is one on the page.
    """
    emil, person = stack.client("emil"), Person(stack, "rosa")
    kernel = await emil.start()
    back = await person.go_through_hub(await person.begin())
    stack.hub.stop()
    try:
        form = await person.gateway.request("GET", back)
        assert (form.status, "does not let you use" in form.body) == (403, True)
        assert 'name="token"' in form.body
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
    assert (await person.sign_in()).status == 303
    assert (await person.gateway.request("GET", ME)).body["admin"] is True
    assert (await person.gateway.request("GET", "/sharedkernel/api/audit")).status == 200


async def test_a_sign_in_ends_in_the_browser_in_which_it_began(stack: HubStack) -> None:
    """A link of somebody else's sign-in signs nobody in, nor does a code that is used again or invented."""
    emil, lise = Person(stack, "emil"), Person(stack, "lise")
    back = await emil.go_through_hub(await emil.begin())
    for forged in (back, f"{BEGIN}/return?code=invented"):
        refused = await lise.gateway.request("GET", forged)
        assert refused.status == 403
        assert "began in another browser" in refused.body
    await lise.begin()
    assert (await lise.gateway.request("GET", back)).status == 403
    assert (await lise.gateway.request("GET", ME)).status == 401

    state = parse_qs(urlsplit(await lise.begin()).query)["state"][0]
    wrong = await lise.gateway.request("GET", f"{BEGIN}/return?code=invented&state={state}")
    assert (wrong.status, "does not let you use" in wrong.body) == (403, True)
    state = parse_qs(urlsplit(await lise.begin()).query)["state"][0]
    refused = await lise.gateway.request("GET", f"{BEGIN}/return?error=%3Cb%3Edenied&state={state}")
    assert (refused.status, "(&lt;b&gt;denied)" in refused.body) == (403, True)

    assert (await emil.gateway.request("GET", back)).status == 303
    assert (await emil.gateway.request("GET", back)).status == 403
