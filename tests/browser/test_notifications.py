"""Notifications of the browser: asked for with a click, and only for what somebody waited for out of sight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenLab
from tests.browser.lab import check_accessible
from tests.browser.page_server import PageServer
from tests.browser.test_gateway_page import OpenPage, document, open_page, server, session
from tests.browser.test_sharing import train

__all__ = ["open_page", "server"]  # pytest finds fixtures by their names here

_SWITCH = "Notify me of my turn and of the end of long cells"
#: notes what the browser shows, and lets a test hide the page: windows without a screen are always visible
_SPY = """
window.shown = [];
window.isHidden = false;
Object.defineProperty(document, "hidden", { get: () => window.isHidden });
window.Notification = class extends Notification {
  constructor(title, options) {
    super(title, options);
    window.shown.push(`${title}: ${options.body}`);
  }
};
"""
_ALLOWED: dict[str, Any] = {"permissions": ["notifications"]}


def spied(page: Page) -> Page:
    """Return a page that notes what it shows; its clock is the test's."""
    page.add_init_script(_SPY)
    page.clock.install()
    page.reload()
    return page


def hide(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        "isHidden => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')); }", is_hidden
    )


def wait_for_news(page: Page, count: int) -> list[str]:
    page.wait_for_function("count => window.shown.length >= count", arg=count)
    shown: list[str] = page.evaluate("window.shown")
    return shown


def test_a_turn_and_an_end_are_told_to_who_looks_elsewhere(open_page: OpenPage, server: PageServer) -> None:
    """Not before it is switched on, nor after it is switched off."""
    idle, queued, running = (
        document(session(1, "ada", state, notebook="train.ipynb")) for state in ("idle", "queued", "running")
    )
    server.say(idle)
    page = spied(open_page(**_ALLOWED))
    switch = page.get_by_label(_SWITCH)
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
    switch = page.get_by_label(_SWITCH)
    switch.click()
    expect(page.get_by_text("Your browser blocks notifications of this page")).to_be_visible()
    expect(switch).not_to_be_checked()
    check_accessible(page)


def test_jupyterlab_tells_of_a_turn(open_lab: OpenLab, tmp_path: Path) -> None:
    """After a real wait; the choice is kept in JupyterLab's settings."""
    grace, ada = open_lab("grace"), open_lab("ada", script=_SPY, **_ALLOWED)
    stop, end = tmp_path / "stop", tmp_path / "end"
    train(grace, stop)
    expect(grace.status_item).to_contain_text("running")
    ada.show_panel()
    switch = ada.panel.get_by_label(_SWITCH)
    expect(switch).not_to_be_checked()
    switch.click()
    expect(switch).to_be_checked()
    waiting = train(ada, end)  # pages may miss a cell that ends at once
    expect(ada.status_item).to_contain_text("1st in line")
    hide(ada.page, True)
    ada.page.wait_for_timeout(11_000)  # shorter waits are not told
    stop.touch()
    (turn,) = wait_for_news(ada.page, 1)
    assert turn.startswith("It is your turn: Untitled")
    hide(ada.page, False)
    end.touch()
    expect(ada.output(waiting)).to_contain_text("trained")
    kept = ada.server.config / "lab" / "user-settings" / "sharedkernel" / "plugin.jupyterlab-settings"
    assert '"notifications": true' in kept.read_text()
    switch.click()
    expect(switch).not_to_be_checked()
