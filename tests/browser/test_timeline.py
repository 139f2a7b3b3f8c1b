"""The timeline of the gateway's page: what it tells, and how one zooms into it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.gateway_page import OpenPage, section, show
from tests.browser.lab import check_accessible, keep_picture
from tests.browser.page_server import PageServer

#: the part of each column of a strip's pixels, but for the first and the last, in the lower half's own colour
_COLOURED = """
canvas => {
  const {width, height} = canvas, pen = canvas.getContext('2d');
  const ran = [...pen.getImageData(width >> 1, height - 1, 1, 1).data].join();
  return [...Array(width - 8).keys()].map(x => {
    const {data} = pen.getImageData(x + 4, 0, 1, height);
    return [...Array(height).keys()].filter(y => [...data.slice(4 * y, 4 * y + 4)].join() === ran).length / height;
  });
}
"""


def rows_of(page: Page) -> Locator:
    return section(page, "Timeline").locator("[data-session]")


def strip_of(page: Page, name: str) -> Locator:
    return rows_of(page).filter(has_text=name).get_by_role("img")


def asked(page: Page, server: PageServer, press: str | None = None) -> tuple[float, float | None]:
    """Return the window that the page asks for next, after a key was pressed."""
    with page.expect_response(lambda response: "api/timeline" in response.url):
        if press is not None:
            page.keyboard.press(press)
    return server.windows[-1]


def test_it_says_who_ran_and_why_one_waited(open_page: OpenPage, server: PageServer) -> None:
    """Under the pointer, and to who cannot see it; and in a table, for who reads rather than looks."""
    page = open_page()
    show(page, "Timeline")
    expect(rows_of(page)).to_have_count(5)
    strip = strip_of(page, "you (explore.ipynb)")
    strip.scroll_into_view_if_needed()
    strip.hover(position={"x": 2, "y": 5})
    tip = page.locator(".sk-Tip")
    expect(tip).to_contain_text("Waited 2.0 s for its turn")
    strip_of(page, "linus (large.ipynb)").hover(position={"x": 700, "y": 5})
    expect(tip).to_contain_text("linus (large.ipynb)")
    expect(tip).to_contain_text("Waited 50 s for 6.0 GiB of memory")
    keep_picture(page, "timeline")
    expect(strip_of(page, "grace (train.ipynb)")).to_have_attribute(
        "aria-label", "grace (train.ipynb). Ran for 11 s. Waited 13 s for its turn, while you (explore.ipynb) and "
        "you (fine-tuning.ipynb) ran"
    )  # fmt: skip
    page.mouse.move(0, 0)
    expect(tip).to_have_count(0)
    section(page, "Timeline").get_by_role("button", name="As a table").click()
    table = section(page, "Timeline").get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(6)
    large = table.get_by_role("row", name="linus (large.ipynb)")
    expect(large).to_contain_text("50 s")
    expect(large).to_contain_text("Waited 50 s for 6.0 GiB of memory")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        check_accessible(page)


def test_one_zooms_with_the_mouse_and_the_keyboard(open_page: OpenPage, server: PageServer) -> None:
    """What ends now goes on to do so; what does not is asked for once."""
    page = open_page()
    show(page, "Timeline")
    expect(rows_of(page)).to_have_count(5)
    assert server.windows[0] == (600.0, None)
    begin = server.timeline["devices"][0]["begin"]
    box = strip_of(page, "you (explore.ipynb)").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5, steps=4)
    with page.expect_response(lambda response: "end=" in response.url):
        page.mouse.up()
    seconds, end = server.windows[-1]
    assert seconds == pytest.approx(30, abs=1)
    assert end == pytest.approx(begin + 60, abs=1)
    section(page, "Timeline").get_by_role("group", name="arrow keys").focus()
    assert asked(page, server, "+")[0] == pytest.approx(15, abs=1)
    moved = asked(page, server, "ArrowLeft")
    assert moved[1] == pytest.approx(begin + 60 - 7.5 - 3.75, abs=1)
    assert asked(page, server, "Home") == (600.0, None)
    section(page, "Timeline").get_by_role("button", name="1 h").click()
    expect(section(page, "Timeline").get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    while server.windows[-1] != (3600.0, None):
        asked(page, server)


def test_short_turns_are_no_barcode(open_page: OpenPage, server: PageServer) -> None:
    """A column of pixels shows which part ran; the legend has what there is to see only."""
    rows = server.timeline["devices"][0]["rows"][:1]
    turns = [(0.05 * number, "running" if number % 2 else "queued") for number in range(2400)]
    rows[0]["segments"] = [[at, at + 0.05, {what: 0.05}, None] for at, what in turns]
    server.timeline["devices"][0]["rows"] = rows
    page = open_page()
    strip = show(page, "Timeline").locator("canvas").first
    expect(strip).to_be_visible()
    heights = strip.evaluate(_COLOURED)
    assert len(heights) > 500
    assert max(heights) - min(heights) <= 0.25
    assert sum(heights) / len(heights) == pytest.approx(0.5, abs=0.1)
    legend = section(page, "Timeline").locator(".sk-Kind")
    expect(legend).to_have_text([re.compile("^ran, in its user.s colour$"), "waited for its turn"])


def test_a_refusal_and_a_quiet_device_are_told(open_page: OpenPage, server: PageServer) -> None:
    """In words."""
    server.timeline["devices"][0]["rows"] = []
    expect(show(open_page(), "Timeline")).to_contain_text("Nobody used the device from")
