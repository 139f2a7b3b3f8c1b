"""The first screen of the gateway's page: its parts, devices and notebooks, however many, and its notifications.

A browser's notifications are asked for with a click, and only for what somebody waited for out of sight.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from playwright.sync_api import Page, expect

from tests.browser.figures import COMMAND, document, of_users, session
from tests.browser.gateway_page import OpenPage, row, section, show
from tests.browser.lab import check_accessible
from tests.browser.page_server import PageServer
from tests.browser.test_sharing import ALLOWED, SPY, SWITCH, hide, wait_for_news


@pytest.mark.parametrize(("users", "opens"), [(0, "How to connect"), (1, "Notebooks")])
def test_parts_have_addresses(open_page: OpenPage, server: PageServer, users: int, opens: str) -> None:
    """Where nothing has ever run, how to connect opens, and stays; a reload and the browser's back know the part."""
    server.say(document(*(session(0, "ada", "idle") for _ in range(users))))
    page = open_page()
    expect(section(page, opens)).to_be_visible()
    # asked for when people come
    with nullcontext() if users else page.expect_response("**/api/class"):
        server.say(of_users(3))
    expect(section(page, opens)).to_be_visible()
    expect(show(page, "Timeline")).to_be_visible()
    page.reload()
    expect(section(page, "Timeline")).to_be_visible()
    expect(page.get_by_role("link", name="Timeline")).to_have_attribute("aria-current", "page")
    expect(section(page, "Notebooks")).to_have_count(0)
    show(page, "Now")
    page.go_back()
    expect(section(page, "Timeline")).to_be_visible()


def test_only_a_long_wait_is_a_banner(open_page: OpenPage, server: PageServer) -> None:
    """As long as it lasts, and no sooner: what waits is in the table."""
    said = json.loads(of_users(3))
    page = open_page(clock=True)
    expect(row(page, "large.ipynb")).to_be_visible()
    for minutes, shown in ((4, 0), (2, 1)):
        page.clock.fast_forward(60_000 * minutes)
        said["device"]["temperature_celsius"] += 1
        server.say(json.dumps(said))
        expect(section(page, "Device")).to_contain_text(f"{said['device']['temperature_celsius']:.0f} °C")
        expect(page.get_by_text("Your notebook fine-tuning.ipynb has waited for 6 min. 2 more")).to_have_count(shown)
    server.say(document(session(0, "ada", "idle")))
    expect(page.get_by_text("has waited for")).to_have_count(0)


def test_actions_are_in_a_menu_where_there_is_no_pointer(open_page: OpenPage, server: PageServer) -> None:
    """On a phone: opened, used and closed by touch."""
    page = open_page(width=390, has_touch=True, is_mobile=True)
    offload = page.get_by_role("button", name="Offload explore.ipynb")
    menu = row(page, "explore.ipynb").get_by_role("button", name="Actions for explore.ipynb")
    expect(offload).to_be_hidden()
    menu.tap()
    expect(menu).to_have_attribute("aria-expanded", "true")
    check_accessible(page)
    page.keyboard.press("Escape")
    expect(offload).to_be_hidden()
    menu.tap()
    with page.expect_response(lambda response: "/offload" in response.url):
        offload.tap()
    expect(offload).to_be_hidden()
    assert [request[:2] for request in server.requests] == [("POST", "/sharedkernel/api/sessions/kernel-0/offload")]


def test_thirty_people_are_sorted_searched_and_turned_over(open_page: OpenPage, server: PageServer) -> None:
    """Notebooks are in one table, one's own first, in low rows; people are twenty a page."""
    server.say(of_users(30))
    page = open_page()
    rows = section(page, "Notebooks").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(32)
    assert rows.last.evaluate("row => row.getBoundingClientRect().bottom - window.innerHeight") <= 700
    heights = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
    assert sum(height > 37 for height in heights) == 1  # the one that says what it waits for
    expect(rows.first).to_contain_text("fine-tuning.ipynb")
    memory = section(page, "Notebooks").get_by_role("button", name="Memory")
    memory.click()
    heading = section(page, "Notebooks").get_by_role("columnheader", name="Memory")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(rows.first).to_contain_text("train.ipynb")
    memory.click()
    expect(rows.first).to_contain_text("fine-tuning.ipynb")
    section(page, "Device").get_by_text("Details").click()
    legend = section(page, "Device").locator(".sk-Legend li")
    expect(legend).to_have_count(12)
    section(page, "Device").get_by_role("button", name="Show all 30 people").click()
    expect(legend).to_have_count(30)
    others = section(page, "Notebooks")
    others.get_by_role("searchbox").fill("student07")
    expect(rows).to_have_count(1)
    others.get_by_role("searchbox").fill("nobody")
    expect(others).to_contain_text("None is called so.")
    others.get_by_role("searchbox").fill("")
    expect(rows).to_have_count(32)
    people = show(page, "People")
    expect(people.get_by_role("row")).to_have_count(21)
    people.get_by_role("button", name="Next page").click()
    expect(people.get_by_role("row")).to_have_count(11)
    people.get_by_role("searchbox").fill("LIN")
    expect(people.get_by_role("rowheader")).to_have_text(["linus"])


def test_alone_there_are_no_others(open_page: OpenPage, server: PageServer) -> None:
    """With a gateway for one user there are neither others nor quotas, and nobody to look after.

    A free device says so, and a full one, too, as its figures are now.
    """
    server.me = {"user": "ada", "admin": True, "auth": "single", "version": "1", "install_command": COMMAND}
    server.say(document(session(0, "ada", "idle")))
    server.history = None
    page = open_page()
    expect(section(page, "Notebooks").locator("tbody").get_by_role("row")).to_have_count(1)
    expect(section(page, "Notebooks").get_by_label("Select")).to_have_count(0)
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Now", "Timeline", "Connect"])
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    device = section(page, "Device")
    expect(device.locator(".sk-Device-turns")).to_have_text("idle")
    expect(device.locator(".sk-Figure")).to_have_text("542 MiB / 24.0 GiB")
    expect(device.get_by_role("img")).to_have_count(1)
    for gib, words in ((16, "nearly full"), (18.8, "· full")):
        server.say(document(session(0, "ada", "running", gib)))
        expect(device).to_contain_text(words)


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
