"""Invitations: a code is good once, is nowhere but in its link, and cannot be guessed."""

from __future__ import annotations

import secrets

import pytest

from tests.gateway.classroom.conftest import CLASS, PAGE, accept, begin, join
from tests.gateway.client import Answer, Client
from tests.gateway.conftest import Stack, wait_for
from tests.gateway.page.browser import Browser


async def test_a_code_is_good_once(stack: Stack) -> None:
    """It signs its user in and gives a token; who comes second is told so, and a new one voids the old."""
    codes = await begin(stack, "maria", "niels")
    browser = Browser(stack.gateway_url)
    answer = await accept(browser, codes["maria"])
    assert (answer.status, answer.body["user"], answer.headers["Cache-Control"]) == (200, "maria", "no-store")
    command = answer.body["install_command"]
    assert f"sharedkernel install --gateway-url {stack.gateway_url} --user --token sk-" in command
    me = (await browser.request("GET", "/sharedkernel/page/me")).body
    assert (me["user"], me["admin"]) == ("maria", False)
    second = await accept(Browser(stack.gateway_url), codes["maria"])
    assert (second.status, second.body["reason"]) == (409, "invitation_used")
    users = {"users": ["maria", "niels"]}
    refused = await stack.client("ada").request("POST", CLASS, users)
    assert (refused.status, refused.body["reason"]) == (409, "link_used")
    assert "maria used a link already" in refused.body["message"]
    again = (await stack.client("ada").request("POST", CLASS, {**users, "replaces": False})).body["codes"]
    assert (await accept(Browser(stack.gateway_url), codes["niels"])).body["reason"] == "wrong_invitation"
    for name in ("maria", "niels"):
        client = Client(stack.gateway_url, await join(stack, again[name]))
        assert (await client.request("GET", "/api/kernels")).status == 200
    # what was given first stays good
    token = command.rpartition(" ")[2]
    assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 200


async def test_whose_link_was_replaced_has_not_joined(stack: Stack) -> None:
    """Until the new one is used; who got another one besides has joined all along."""
    ada, codes = stack.client("ada"), await begin(stack, "maria", "niels", "otto")

    async def joined() -> list[str]:
        users = (await ada.request("GET", CLASS)).body["class"]["users"]
        return [user for user, member in users.items() if member["joined"] is not None]

    for user in ("maria", "niels"):
        await join(stack, codes[user])
    assert await joined() == ["maria", "niels"]
    replaced = (await ada.request("POST", CLASS, {"users": ["maria", "otto"], "replaces": True})).body["codes"]
    assert (await ada.request("POST", CLASS, {"users": ["niels"], "replaces": False})).status == 200
    assert await joined() == ["niels"]
    await join(stack, replaced["maria"])
    assert await joined() == ["maria", "niels"]


@pytest.mark.heavy
async def test_an_invitation_opens_again_in_its_browser_until_the_command_has_run(stack: Stack) -> None:
    """Each time with another token in the place of the first; a restart of the gateway changes nothing."""
    file = stack.directory / "sharedkernel_class.json"
    browser, other = Browser(stack.gateway_url), Browser(stack.gateway_url)
    codes = await begin(stack, "maria", "niels", group="physics")

    async def look(who: Browser, user: str = "maria") -> Answer:
        assert (await who.request("GET", PAGE)).status == 200
        return await who.request("POST", f"{PAGE}/look", {"code": codes[user]})

    async def command_of(who: Browser) -> str:
        answer = await accept(who, codes["maria"])
        assert answer.status == 200, answer
        return str(answer.body["install_command"].rpartition(" ")[2])

    found = (await look(browser)).body
    assert {key: found[key] for key in ("user", "class", "teacher", "again")} == {
        "user": "maria", "class": "physics", "teacher": "ada", "again": False,
    }  # fmt: skip
    assert (await look(browser)).status == 200  # nothing was used up
    tokens = [await command_of(browser)]
    (cookie,) = (morsel for name, morsel in browser.flags.items() if name.startswith("sharedkernel-invitation-"))
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", PAGE)
    assert cookie.value not in file.read_text()
    assert (await look(browser)).body["again"] is True
    assert (await look(browser, "niels")).body["again"] is False
    # its code alone opens nothing, and neither does another invitation's key
    other.cookies |= {name: "another" for name in browser.cookies if name.startswith("sharedkernel-invitation-")}
    for answer in (await look(other), await accept(other, codes["maria"])):
        assert (answer.status, answer.body["reason"]) == (409, "invitation_used")
    tokens.append(await command_of(browser))
    clients = [Client(stack.gateway_url, token) for token in tokens]
    assert [(await client.request("GET", "/api/kernelspecs")).status for client in clients] == [403, 200]
    answer = await look(browser)
    assert (answer.status, answer.body["reason"]) == (409, "invitation_used")
    assert "its command has run" in answer.body["message"]
    wait_for(lambda: '"has_connected":true' in file.read_text())
    stack.gateway.kill()
    stack.restart_gateway()
    for answer in (await look(browser), await accept(browser, codes["maria"])):
        assert "its command has run" in answer.body["message"]


async def test_a_thief_of_a_code_keeps_nothing(stack: Stack) -> None:
    """Neither the token nor one that was made with it; sessions go on for whom they belong to."""
    ada, thief = stack.client("ada"), Browser(stack.gateway_url)
    codes = await begin(stack, "maria")
    answer = await accept(thief, codes["maria"])
    tokens = [answer.body["install_command"].rpartition(" ")[2]]
    tokens.append((await thief.request("POST", "/sharedkernel/page/token")).body["token"])
    kernel = await Client(stack.gateway_url, tokens[0]).start()
    again = (await ada.request("POST", CLASS, {"users": ["maria"], "replaces": True})).body["codes"]
    entries = (await ada.request("GET", "/sharedkernel/api/audit?user=ada")).body["entries"]
    invited = next(entry for entry in entries if entry["action"] == "invite to class")
    assert (invited["users"], invited["replaces"]) == (["maria"], True)
    for token in tokens:
        assert (await Client(stack.gateway_url, token).request("GET", "/api/kernels")).status == 403
    assert (await thief.request("GET", "/sharedkernel/page/me")).status == 401
    maria = Client(stack.gateway_url, await join(stack, again["maria"]))
    assert [entry["id"] for entry in (await maria.request("GET", "/api/kernels")).body] == [kernel]


async def test_a_code_comes_from_the_page_itself_and_is_in_no_file_and_no_log(stack: Stack) -> None:
    """A form of another site, or a body that is far too long, uses nothing up; the page is the same for every code.

    Nor are the tokens that they give in any file.
    """
    codes = await begin(stack, "maria", "niels")
    assert (await accept(Browser(stack.gateway_url), codes["maria"], xsrf=False)).status == 403
    browser = Browser(stack.gateway_url)
    pages = [(await browser.request("GET", PAGE)).body, (await Browser(stack.gateway_url).request("GET", PAGE)).body]
    assert pages[0] == pages[1]
    long = await browser.request("POST", f"{PAGE}/accept", {"code": codes["maria"], "more": "x" * 5000})
    assert long.status == 403
    wrong = await browser.request("POST", f"{PAGE}/accept", {"code": 3})
    assert (wrong.status, wrong.body["reason"]) == (400, "bad_request")
    token = await join(stack, codes["maria"])
    await browser.request("GET", f"{PAGE}?code={codes['niels']}")  # what no page of ours sends
    seen = [codes["maria"].partition("-")[2], token.rpartition("-")[2]]
    files = [stack.gateway.log_path, *stack.directory.glob("*.json"), stack.runtime_directory / "audit.jsonl"]
    assert stack.directory / "sharedkernel_class.json" in files
    assert [path for path in files for secret in seen if secret in path.read_text()] == []


async def test_codes_cannot_be_guessed(stack: Stack) -> None:
    """Wrong ones count as wrong tokens do, and are recorded; a right one still works."""
    elsewhere = {"X-Forwarded-For": "10.1.2.3"}  # whose wrong codes no other test counts

    codes = await begin(stack, "maria")
    known = codes["maria"].partition("-")[0]
    statuses = []
    for _ in range(12):
        browser = Browser(stack.gateway_url)
        answer = await accept(browser, f"{known}-{secrets.token_hex(16)}", **elsewhere)
        statuses.append(answer.status)
    assert set(statuses) == {403, 429}
    assert statuses == sorted(statuses)
    assert (await accept(Browser(stack.gateway_url), codes["maria"], **elsewhere)).status == 200
    assert '"action": "refuse invitation"' in (stack.runtime_directory / "audit.jsonl").read_text()
