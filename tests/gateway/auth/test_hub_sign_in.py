"""Signing in on the gateway's page with a real JupyterHub."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.gateway.auth.conftest import HubStack
from tests.gateway.client import Answer
from tests.gateway.page.browser import FORM, Browser

pytest.importorskip("jupyterhub")
pytestmark = pytest.mark.heavy

BEGIN = "/sharedkernel/page/hub"
ME = "/sharedkernel/page/me"


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


async def test_who_is_signed_in_at_the_hub_is_on_the_page(hub_stack: HubStack) -> None:
    """Without a token to type; the page shows what its user may see, until the hub takes the token back."""
    emil = Person(hub_stack, "emil")
    done = await emil.sign_in()
    assert (done.status, done.headers["Location"]) == (303, "/")
    name = next(name for name in emil.gateway.cookies if name.startswith("sharedkernel-page-"))
    flags = emil.gateway.flags[name]
    assert (flags["httponly"], flags["samesite"], flags["path"]) == (True, "Lax", "/")
    me = (await emil.gateway.request("GET", ME)).body
    assert (me["user"], me["admin"], me["auth"]) == ("emil", False, "hub")
    quotas = (await emil.gateway.request("GET", "/sharedkernel/api/quotas")).body["users"]["emil"]
    assert quotas["share"] == {"value": 2.0, "source": "config: group class"}
    hub_stack.hub.revoke_all("emil")
    hub_stack.forget("emil")
    while (await emil.gateway.request("GET", ME)).status == 200:
        pass  # for as long as the hub's answer is kept
    assert (await emil.gateway.request("GET", "/")).headers["Location"] == FORM
    audit = (hub_stack.runtime_directory / "audit.jsonl").read_text()
    assert '"action": "sign in", "by": "JupyterHub"' in audit


async def test_an_admin_by_scope_is_one_on_the_page(hub_stack: HubStack) -> None:
    """Where the hub's configuration lets the service have the scope. A hub that is away is a sentence in the form."""
    rosa = Person(hub_stack, "rosa")
    back = await rosa.go_through_hub(await rosa.begin())
    hub_stack.hub.stop()
    try:
        answer = await rosa.gateway.request("GET", back)
        assert (answer.status, "does not let you use" in answer.body) == (403, True)
        assert 'name="token"' in answer.body
    finally:
        hub_stack.hub.start()
        hub_stack.hub.wait_until_ready()
    assert (await rosa.sign_in()).status == 303
    assert (await rosa.gateway.request("GET", ME)).body["admin"] is True
    assert (await rosa.gateway.request("GET", "/sharedkernel/api/audit")).status == 200


async def test_a_sign_in_ends_in_the_browser_in_which_it_began(hub_stack: HubStack) -> None:
    """A link of somebody else's sign-in signs nobody in, nor does a code that is used again or invented."""
    emil, lise = Person(hub_stack, "emil"), Person(hub_stack, "lise")
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
