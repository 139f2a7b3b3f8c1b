"""The gateway's own page in front of a real gateway: with people at work, while services are away, and afterwards."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from sharedkernel.gateway.lock import CANCEL_SIGNAL, DRAIN_SIGNAL
from sharedkernel.local_stack import LocalStack
from tests.browser.gateway_page import OpenPage, apart, sign_in
from tests.browser.lab import check_accessible, keep_picture
from tests.cli.support import end_sessions
from tests.gateway.client import Client

_KEEP = "import torch\nkept = torch.ones(64 << 18)  # 64 MiB"
#: milliseconds after which a page notices that nothing comes any more, and that it waits at most until it asks again
_SILENCE, _PAUSE = 16_000, 7_000


def test_from_signing_in_to_signing_out(open_window: OpenPage, stack: LocalStack) -> None:
    """A wrong token is told; a right one shows what runs, live, and what can be done about it."""
    page = open_window(stack.gateway_url)
    sign_in(page, "sk-00000000-wrong")
    expect(page.get_by_role("alert")).to_contain_text("does not know that token")
    keep_picture(page, "gateway-page-sign-in")
    user, other = stack.users[:2]
    sign_in(page, stack.token(user))
    expect(page.get_by_role("link", name="Connect")).to_be_visible()

    async def work() -> None:
        for name, notebook in ((user, "train.ipynb"), (other, "secret.ipynb")):
            client = Client(stack.gateway_url, stack.token(name))
            async with client.attach(await client.start(KERNEL_NOTEBOOK=notebook)) as channels:
                assert (await channels.run(_KEEP))["status"] == "ok"

    apart(work())
    try:
        page.get_by_role("link", name="Now").click()
        mine = page.get_by_role("row").filter(has_text="train.ipynb")
        expect(mine).to_be_visible()
        keep_picture(page, "gateway-page-live", full_page=True)
        mine.get_by_role("button", name="Offload").click()
        expect(mine).to_contain_text("offloaded")
        page.get_by_role("link", name="People").click()
        page.get_by_label(f"Select the notebooks of {other}").check()
        page.get_by_role("button", name="Stop 1").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop 1").click()
        page.get_by_role("link", name="Now").click()
        expect(page.get_by_role("row").filter(has_text="secret.ipynb")).to_have_count(0)
        page.get_by_role("link", name="Audit").click()
        expect(page.get_by_role("region", name="Audit log").get_by_role("row").nth(1)).to_contain_text(
            f"{user}end session · secret.ipynb of {other}"
        )
        page.get_by_role("link", name="Connect").click()
        page.get_by_role("button", name="Make another token").click()
        expect(page.get_by_text("This one is shown once")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Your token")).to_be_visible()
        page.goto(stack.gateway_url)
        expect(page.get_by_label("Your token")).to_be_visible()
    finally:
        end_sessions(stack)


@pytest.fixture
def served(stack: LocalStack) -> Iterator[LocalStack]:
    """Return the stack; what a test has ended is started again."""
    yield stack
    for service in (stack.executor, stack.gateway):
        if not service.running:
            service.start()
        service.wait_until_ready()


@pytest.fixture
def page(open_window: OpenPage, served: LocalStack) -> Page:
    """Return the page of ada, who is an admin, with figures; its clock can be put forward."""
    page = open_window(served.gateway_url, clock=True)
    sign_in(page, served.token("ada"))
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_role("region", name="Device")).to_be_visible()
    return page


def check_widths(page: Page, name: str) -> None:
    """Check that on narrow and wide screens nothing is wider, and that axe finds nothing; keep pictures."""
    for width in (400, 1300):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        check_accessible(page)
        keep_picture(page, f"{name}-{width}")


def test_the_executor_is_away(page: Page, open_window: OpenPage, served: LocalStack) -> None:
    """One banner says since when and what to do; old figures are marked; who opens the page then sees none."""
    served.executor.kill()
    banner = page.get_by_text("No figures since")
    expect(banner).to_have_text(
        re.compile(
            r"No figures since \d\d:\d\d:\d\d: no executor answers at .*; start one with `sharedkernel executor.*`, or "
            r"wait for it; if this is not your machine, tell whoever runs it\. Notebooks keep their variables\."
        )
    )
    since = re.search(r"\d\d:\d\d:\d\d", banner.inner_text())
    assert since is not None
    expect(page.locator(".sk-AsOf")).to_have_text(f"Figures as of {since[0]}")
    expect(page.get_by_role("region", name="Device")).to_have_css("filter", "grayscale(1)")
    with page.expect_response(lambda response: "api/timeline" in response.url and response.status == 503):
        page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_text("no executor answers")).to_have_count(1)
    page.get_by_role("link", name="Now").click()
    check_widths(page, "gateway-page-executor-away")
    expect(page.get_by_text("no executor answers")).to_have_count(1)
    later = open_window(served.gateway_url)
    sign_in(later, served.token("grace"))
    expect(later.get_by_text(f"No figures since {since[0]}: no executor answers")).to_be_visible()
    expect(later.get_by_role("region", name="How to connect")).to_be_visible()
    expect(later.get_by_text("another version")).to_have_count(0)
    check_widths(later, "gateway-page-without-figures")
    served.executor.start()
    expect(banner).to_have_count(0)
    expect(page.locator(".sk-AsOf")).to_have_count(0)


def test_the_gateway_drains_and_serves_on(page: Page, served: LocalStack) -> None:
    """A banner says what it waits for, as long as it does."""
    process, grace = served.gateway.process, Client(served.gateway_url, served.token("grace"))
    assert process is not None

    async def begin() -> str:
        kernel = await grace.start()
        async with grace.attach(kernel) as channels:
            await channels.send("execute_request", {"code": "import time; time.sleep(3600)", "silent": False})
            await channels.until("execute_input")
            return kernel

    kernel = apart(begin())
    try:
        process.send_signal(DRAIN_SIGNAL)
        expect(page.get_by_text("The gateway stops once the cell that runs has ended, at ")).to_be_visible()
        expect(page.get_by_text("No new notebooks start; those that are open keep their variables.")).to_be_visible()
        check_widths(page, "gateway-page-draining")
        process.send_signal(CANCEL_SIGNAL)
        expect(page.get_by_text("The gateway stops")).to_have_count(0)
    finally:
        apart(grace.request("DELETE", f"/api/kernels/{kernel}?linger=0"))
    assert served.gateway.running


def test_a_gateway_that_was_restarted_says_why_one_signs_in_again(page: Page, served: LocalStack) -> None:
    """Until then the page says that it is away, also where it hangs, and no browser's own words are shown."""
    process = served.gateway.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        away = page.get_by_text(re.compile(r"The gateway has not answered since \d\d:\d\d:\d\d\. Notebooks keep their"))
        page.clock.fast_forward(_SILENCE)
        expect(away).to_be_visible()
        expect(page.locator(".sk-AsOf")).to_be_visible()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    expect(away).to_have_count(0)
    served.gateway.stop()
    expect(away).to_be_visible()
    page.get_by_role("link", name="Connect").click()
    page.get_by_role("button", name="Make another token").click()
    expect(page.locator(".sk-mod-problem").first).to_contain_text(
        "No token could be made: The gateway does not answer; try again."
    )
    expect(page.get_by_text("Failed to fetch")).to_have_count(0)
    check_widths(page, "gateway-page-gateway-away")
    served.gateway.start()
    served.gateway.wait_until_ready()
    page.clock.fast_forward(_PAUSE)
    why = page.get_by_text("The gateway was restarted after you signed in. Sign in again; sessions go on.")
    expect(why).to_be_visible()
    check_widths(page, "gateway-page-restarted")
    sign_in(page, served.token("ada"))
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_role("region", name="Device")).to_be_visible()
