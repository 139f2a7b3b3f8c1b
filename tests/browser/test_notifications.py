"""Notifications of the browser: asked for with a click, and only for what somebody waited for out of sight."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.figures import document, session
from tests.browser.gateway_page import OpenPage
from tests.browser.lab import check_accessible
from tests.browser.page_server import PageServer
from tests.browser.test_sharing import ALLOWED, SPY, SWITCH, hide, wait_for_news


def spied(page: Page) -> Page:
    """Return a page that notes what it shows; its clock is the test's."""
    page.add_init_script(SPY)
    page.clock.install()
    page.reload()
    return page


def test_a_turn_and_an_end_are_told_to_who_looks_elsewhere(open_page: OpenPage, server: PageServer) -> None:
    """Not before it is switched on, nor after it is switched off."""
    idle, queued, running = (
        document(session(1, "ada", state, notebook="train.ipynb")) for state in ("idle", "queued", "running")
    )
    server.say(idle)
    page = spied(open_page(**ALLOWED))
    switch = page.get_by_label(SWITCH)
    expect(switch).not_to_be_checked()

    def go_through(*, is_told: bool) -> None:
        """Have the session wait, run and end, and wait for the news out of sight if it is told."""
        card = page.get_by_role("region", name="Notebooks").locator("tbody").get_by_role("row")
        for said, words, is_news in ((queued, "in line", False), (running, "running", True), (idle, "idle", True)):
            is_awaited = is_news and is_told
            hide(page, is_awaited)
            before = page.evaluate("window.shown.length")
            server.say(said)
            if is_awaited:
                wait_for_news(page, before + 1)
                hide(page, False)
            expect(card).to_contain_text(words)
            page.clock.fast_forward(100_000)

    go_through(is_told=False)
    switch.click()
    expect(switch).to_be_checked()
    go_through(is_told=False)
    assert page.evaluate("window.shown") == []
    go_through(is_told=True)
    turn, end = wait_for_news(page, 2)
    assert turn == "It is your turn: train.ipynb runs now, after a wait of 2 min."
    assert end == "train.ipynb has finished: Its cell ended after 2 min."
    page.reload()
    expect(switch).to_be_checked()
    switch.click()
    page.reload()
    expect(switch).not_to_be_checked()


def test_a_browser_that_does_not_allow_it_is_named(open_page: OpenPage) -> None:
    """The switch stays off, and axe finds nothing."""
    page = spied(open_page())
    switch = page.get_by_label(SWITCH)
    switch.click()
    expect(page.get_by_text("Your browser blocks notifications of this page")).to_be_visible()
    expect(switch).not_to_be_checked()
    check_accessible(page)
