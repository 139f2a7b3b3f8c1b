"""The gateway's page: signing in, what a page session may do, and what it shows."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from sharedkernel.gateway.auth.identity import PageSessions
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.page.handlers import STATIC
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack
from tests.gateway.page.browser import FORM, Browser

FIGURES = "/sharedkernel/page/figures"


def take_back(stack: Stack, token: str) -> None:
    assert TokenFile(stack.directory / "tokens.json").remove("-".join(token.split("-")[:2])) == 1


@asynccontextmanager
async def figures(browser: Browser) -> AsyncIterator[asyncio.StreamReader]:
    """Open the stream of figures, and yield it after the headers of a good answer."""
    place = urlsplit(browser.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 24)
    try:
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        writer.write(f"GET {FIGURES} HTTP/1.1\r\nHost: {place.netloc}\r\nCookie: {cookies}\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"text/event-stream" in head
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def next_figures(reader: asyncio.StreamReader) -> Any:
    while True:
        line = await asyncio.wait_for(reader.readuntil(b"\n"), PATIENCE)
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))


async def test_an_expired_token_is_told_so_and_signed_out(stack: Stack) -> None:
    """With a sentence where a token was sent; one who was signed in sees the form again. What it made expires, too."""
    path = stack.directory / "tokens.json"
    file = TokenFile(path)
    token = file.add("brief", expires=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1))

    try:
        browser = Browser(stack.gateway_url)
        await browser.sign_in(token)
        made = (await browser.request("POST", "/sharedkernel/page/token")).body["token"]
        assert file.user_for(made) == "brief"
        stored = json.loads(path.read_text())
        for entry in stored["tokens"].values():
            if entry["user"] == "brief":
                entry["expires"] = "2026-01-01T00:00:00+00:00"
        path.write_text(json.dumps(stored))
        for each in (token, made):
            refused = await Client(stack.gateway_url, each).request("GET", "/api/kernels")
            assert (refused.status, refused.body["reason"]) == (403, "token_expired")
            assert refused.body["message"].startswith("this token of brief expired at ")
        assert (await browser.request("GET", "/")).headers["Location"] == FORM
        assert "You were signed out: this token of brief expired at " in (await browser.request("GET", FORM)).body
        assert "expired at" in (await browser.sign_in(token)).body
    finally:
        file.remove("brief")


async def test_a_token_opens_the_page_and_signing_out_closes_it(stack: Stack) -> None:
    """The cookie holds no token, is out of reach for scripts, and is worth nothing after signing out."""
    browser = Browser(stack.gateway_url)
    front = await browser.request("GET", "/")
    assert (front.status, front.headers["Location"]) == (302, FORM)
    assert (await browser.request("GET", "/sharedkernel/page/me")).status == 401
    for path in ("", "/return?code=x&state=y"):  # there is no hub
        assert (await browser.request("GET", f"/sharedkernel/page/hub{path}")).status == 404
    signed_in = await browser.sign_in(stack.token("ada"))
    assert (signed_in.status, signed_in.headers["Location"]) == (303, "/")
    name = next(name for name in browser.cookies if name.startswith("sharedkernel-page-"))
    flags = browser.flags[name]
    assert (flags["httponly"], flags["samesite"], flags["path"], flags["secure"]) == (True, "Lax", "/", "")
    assert stack.token("ada") not in browser.cookies[name]
    front = await browser.request("GET", "/")
    assert front.status == 200
    assert ("page.js" if (STATIC / "page.js").is_file() else "was not built") in front.body
    policy = front.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert (front.headers["X-Content-Type-Options"], front.headers["Referrer-Policy"]) == ("nosniff", "same-origin")
    me = (await browser.request("GET", "/sharedkernel/page/me")).body
    assert (me["user"], me["admin"], me["auth"]) == ("ada", True, "token")
    # A gateway of a checkout has no wheel: people need one, too.
    assert (me["needs_checkout"], me["install_command"].startswith("pip install .\n")) == (True, True)
    assert (await stack.client("ada").request("GET", "/sharedkernel/package/x.whl")).status == 404
    assert me["install_command"].endswith(f"\nsharedkernel install --gateway-url {stack.gateway_url} --user")
    old = dict(browser.cookies)
    assert (await browser.request("POST", "/sharedkernel/page/sign-out")).status == 204
    browser.cookies = old
    assert (await browser.request("GET", "/sharedkernel/page/me")).status == 401
    assert (await browser.request("GET", "/sharedkernel/api/status")).status == 403
    audit = (stack.runtime_directory / "audit.jsonl").read_text()
    assert '"action": "sign in"' in audit
    assert '"action": "sign out"' in audit


async def test_a_wrong_token_is_told_in_the_form(stack: Stack) -> None:
    """One that is far too long is not read at all."""
    wrong = {"sk-00000000-wrong": "does not know that token", "": "Enter your token", "x" * 5000: "form is too old"}
    for token, sentence in wrong.items():
        answer = await Browser(stack.gateway_url).sign_in(token)
        assert (answer.status, sentence in answer.body) == (403, True)
        assert token not in answer.body or not token


async def test_what_changes_something_has_to_come_from_the_page_itself(stack: Stack) -> None:
    """Neither a form of another site nor a script that cannot read the cookie signs in, out, or ends a session."""
    browser = Browser(stack.gateway_url)
    forged = await browser.request("POST", FORM, {"token": stack.token("grace")}, form=True)
    assert forged.status == 403
    await browser.sign_in(stack.token("grace"))
    kernel = await stack.client("grace").start()
    for method, path in (
        ("POST", "/sharedkernel/page/sign-out"),
        ("POST", "/sharedkernel/page/token"),
        ("POST", f"/sharedkernel/api/sessions/{kernel}/offload"),
        ("POST", f"/sharedkernel/api/sessions/{kernel}/end-programs"),
        ("POST", f"/api/kernels/{kernel}/interrupt"),
        ("DELETE", f"/api/kernels/{kernel}"),
    ):
        assert (await browser.request(method, path, xsrf=False)).status == 403, path
        elsewhere = await browser.request(method, path, Origin="https://elsewhere.example")
        assert elsewhere.status in (403, 404), path
    assert (await browser.request("POST", f"/api/kernels/{kernel}/interrupt")).status == 204
    assert (await browser.request("DELETE", f"/api/kernels/{kernel}?linger=0")).status == 204


async def test_a_page_session_is_for_the_page_alone(stack: Stack) -> None:
    """It starts no notebook and opens no websocket; it sees and does what its user may."""
    browser = Browser(stack.gateway_url)
    assert (await browser.request("GET", FIGURES)).status == 403
    await browser.sign_in(stack.token("grace"))
    mary = stack.client("mary")
    kernel = await mary.start(KERNEL_NOTEBOOK="secret.ipynb")
    assert (await browser.request("POST", "/api/kernels")).status == 403
    assert (await browser.request("GET", "/api/kernels")).status == 403
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
    assert (await browser.request("GET", f"/api/kernels/{kernel}/channels", **upgrade)).status == 403
    assert (await browser.request("GET", "/sharedkernel/api/events", **upgrade)).status == 403
    assert (await browser.request("DELETE", f"/api/kernels/{kernel}")).status == 404
    for action in ("offload", "end-programs"):
        assert (await browser.request("POST", f"/sharedkernel/api/sessions/{kernel}/{action}")).status == 404
    assert (await browser.request("PUT", "/sharedkernel/api/quotas", {"users": {}})).status == 403
    async with figures(browser) as reader:
        document = await next_figures(reader)
        assert [entry["notebook"] for entry in document["sessions"]] == [None]
        await mary.end(kernel)
        while document["sessions"]:
            document = await next_figures(reader)


async def test_the_form_says_why_one_is_signed_out(stack: Stack) -> None:
    """To who was signed in: a token that was taken back, many newer sign-ins; to others nothing.

    A token made on the page is as good as the first, which stays good; removed, it opens nothing.
    """

    async def why(browser: Browser) -> str:
        """Return what the form says, which has to be one sentence or two, in one line."""
        assert (await browser.request("GET", "/")).headers["Location"] == FORM
        found = re.search(
            r'<p class="sk-Notice" role="status">([^<\n]*)</p>', (await browser.request("GET", FORM)).body
        )
        return "" if found is None else found[1]

    assert await why(Browser(stack.gateway_url)) == ""
    browser, other = Browser(stack.gateway_url), Browser(stack.gateway_url)
    await browser.sign_in(stack.token("linus"))
    token = (await browser.request("POST", "/sharedkernel/page/token")).body["token"]
    assert (await Client(stack.gateway_url, token).request("GET", "/sharedkernel/api/status")).status == 200
    assert (await other.sign_in(token)).status == 303
    assert (await other.request("GET", "/sharedkernel/page/me")).status == 200
    take_back(stack, token)
    assert (await other.request("GET", "/sharedkernel/page/me")).status == 401
    assert await why(other) == "You were signed out: your token was taken back. Ask your admin for another."
    assert (await browser.request("GET", "/sharedkernel/page/me")).status == 200
    for _ in range(20):
        last = Browser(stack.gateway_url)
        await last.sign_in(stack.token("linus"))
    assert (await why(browser)).startswith("Your sign-in has ended, as it does after 12 hours without use, after 7")
    assert (await last.request("POST", "/sharedkernel/page/sign-out")).status == 204
    assert await why(last) == ""


async def test_nobody_can_make_tokens_without_end(stack: Stack) -> None:
    """The file of tokens is read by every request that brings a new one."""
    browser = Browser(stack.gateway_url)
    await browser.sign_in(stack.token("linus"))
    answers = [await browser.request("POST", "/sharedkernel/page/token") for _ in range(20)]
    for answer in answers[:-1]:
        take_back(stack, answer.body["token"])
    assert answers[-1].status == 403
    assert "linus has 20 tokens" in answers[-1].body["message"]


def test_page_sessions_are_bounded() -> None:
    """A user who signs in again and again loses the sessions that were used least recently."""
    sessions = PageSessions()
    keys = [sessions.start("ada", f"token {number}") for number in range(25)]
    other = sessions.start("grace", "hers")
    kept = [key for key in keys if sessions.token_of(key) is not None]
    assert kept == keys[5:]
    assert sessions.token_of(keys[5]) == "token 5"  # used last now
    sessions.start("ada", "another")
    assert sessions.token_of(keys[5]) == "token 5"
    assert sessions.token_of(keys[6]) is None
    sessions.end(other)
    assert sessions.token_of(other) is None
