"""The gateway's own page: whatever its figures are, and whoever looks at it on whatever screen."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.figures import COMMAND, GIB, MARKUP, NAMES, document, limits_of, of_users, session, timeline_of
from tests.browser.gateway_page import OpenPage, row, section, show
from tests.browser.lab import check_accessible, keep_picture
from tests.browser.page_server import PageServer

#: of a desktop, a narrow window, half of a desktop's (as with everything at 200 %) and a phone
_WIDTHS = (1280, 700, 640, 390)
#: the sizes of all text
_SIZES = """
[...document.querySelectorAll('#page *')].filter(element => [...element.childNodes].some(
  node => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
).map(element => getComputedStyle(element).fontSize)
"""


@pytest.mark.parametrize(("users", "devices", "scheme"), [(3, 1, "light"), (12, 1, "light"), (30, 4, "dark")])
def test_nothing_keeps_anybody_out(
    open_page: OpenPage, server: PageServer, users: int, devices: int, scheme: str
) -> None:
    """On any screen axe finds nothing, nothing is wider than the screen, and text has one of four sizes.

    Twelve people are seen on one screen.
    """
    said = json.loads(of_users(users))
    if devices > 1:
        said["devices"] = [{**said["device"], "name": f"cuda:{number}"} for number in range(devices)]
        for number, entry in enumerate(said["sessions"]):
            entry["device"] = f"cuda:{number % devices}"
    server.say(json.dumps(said))
    server.timeline = timeline_of(of_users(users))
    server.quotas = {"users": {name: limits_of("8GiB") for name in NAMES[:users]}}
    page = open_page(color_scheme=scheme)
    strips = section(page, "Device" if devices == 1 else "Devices")
    for width in _WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        expect(row(page, "train.ipynb")).to_contain_text("grace")
        if devices == 1:
            expect(strips.get_by_role("img", name="last hour")).to_be_visible()
        for entry in said.get("devices", ()):
            expect(strips).to_contain_text(entry["name"])
        if (width, users) == (1280, 12):
            last = section(page, "Notebooks").get_by_role("row").last.bounding_box()
            assert last["y"] + last["height"] <= 900
        assert set(page.evaluate(_SIZES)) <= {"12px", "14px", "20px", "28px"}
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        check_accessible(page)
    for name, title in (("Timeline", "Last hour"), ("People", None), ("Connect", "How to connect")):
        expect(show(page, name, title)).to_be_visible()
        assert set(page.evaluate(_SIZES)) <= {"12px", "14px", "20px", "28px"}
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        check_accessible(page)


def test_it_says_who_runs_and_who_waits_for_what(open_page: OpenPage) -> None:
    """In words that need no glossary; lanes are for experts."""
    page = open_page()
    rows = section(page, "Notebooks").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("youfine-tuning.ipynb2nd in line")
    expect(rows.nth(2)).to_contain_text("youexplore.ipynbidle")
    expect(rows.nth(3)).to_contain_text("gracetrain.ipynbrunningabout 2 min left")
    expect(rows.nth(4)).to_contain_text("graceplots.ipynb1st in line")
    expect(rows.nth(5)).to_contain_text(
        re.compile(
            r"linuslarge\.ipynbwaiting for memoryNeeds 8\.\d GiB, 8\.\d GiB free · "
            r"Your idle notebook explore\.ipynb makes room in about 26 s"
        )
    )
    device = section(page, "Device")
    expect(device).to_contain_text("1 computing · 3 waiting")
    expect(device).to_contain_text("83 % busy · 61 °C · 58 of 72 W")
    expect(device.get_by_role("img", name="in use in the last hour")).to_be_visible()
    expect(device.get_by_text("Lane 1")).to_be_hidden()
    device.get_by_text("Details").click()
    expect(device.get_by_text("Lane 1")).to_be_visible()


def test_sessions_are_offloaded_interrupted_and_shut_down(open_page: OpenPage, server: PageServer) -> None:
    """By a click, with the header that protects from forged requests; shutting down asks first.

    A refusal is shown in the gateway's own words, until it is dismissed.
    """
    page = open_page()
    mine = section(page, "Notebooks")
    server.refusal = "The session is not idle; interrupt it first."
    mine.get_by_role("button", name="Offload explore.ipynb").click()
    expect(page.get_by_role("alert").first).to_contain_text(f"explore.ipynb could not be offloaded: {server.refusal}")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text(server.refusal)).to_have_count(0)
    server.refusal = None
    mine.get_by_role("button", name="Offload explore.ipynb").click()
    mine.get_by_role("button", name="Interrupt fine-tuning.ipynb").click()
    with page.expect_response(lambda response: response.request.method == "DELETE"):
        mine.get_by_role("button", name="Shut down explore.ipynb").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        mine.get_by_role("button", name="Shut down explore.ipynb").click()
        page.get_by_role("dialog").get_by_role("button", name="Shut down").click()
    assert sorted(request[:2] for request in server.requests[1:]) == [
        ("DELETE", "/api/kernels/kernel-0"),
        ("POST", "/api/kernels/kernel-1/interrupt"),
        ("POST", "/sharedkernel/api/sessions/kernel-0/offload"),
    ]


def test_what_was_shut_down_is_brought_back_or_ended(open_page: OpenPage, server: PageServer) -> None:
    """Brought back where its notebook has a new session, else the notebook is named; ended after a question."""
    shut_down = {"lingering": True, "lingering_seconds": 594.0, "notebook": "train.ipynb", "kernel_id": "kernel-old"}
    old, new = session(0, "ada", "idle", **shut_down), session(1, "ada", "idle", notebook="train.ipynb")
    server.say(document(old))
    server.quotas = {"users": {"ada": {"linger": {"value": 600.0}}}}
    page = open_page()
    mine = section(page, "Notebooks")
    expect(mine).to_contain_text("stays for 10 min, %shared attach in its notebook brings it back")
    server.say(document(old, new))
    mine.get_by_role("button", name="Bring back variables (10 min)").click()
    mine.get_by_role("button", name="Shut down train.ipynb").click()
    expect(page.get_by_role("dialog")).to_contain_text("For 10 min its variables can be brought back.")
    page.get_by_role("button", name="Cancel").click()
    mine.get_by_role("button", name="End train.ipynb for good").click()
    with page.expect_response(lambda response: response.request.method == "DELETE"):
        page.get_by_role("dialog").get_by_role("button", name="End it").click()
    assert [request[:2] for request in server.requests] == [
        ("POST", "/sharedkernel/api/sessions/kernel-1/attach"),
        ("DELETE", "/api/kernels/012345678900?linger=0"),
    ]


def test_room_is_asked_for_and_made(open_page: OpenPage, server: PageServer) -> None:
    """By a click of who waits, and one of who is asked, or not now."""
    mine = {"needed_bytes": 6 * GIB, "free_bytes": GIB, "waiting_for": "memory", "notebook": "large.ipynb"}
    sessions = session(0, "ada", "waiting", **mine), session(1, "ada", "idle", 3.8), session(2, "linus", "idle")
    waits, idle, other = sessions
    server.say(document(*sessions))
    page = open_page()
    section(page, "Notebooks").get_by_role("button", name="Ask for room").click()
    asks = {"session": other["id"], "owner": "linus", "asking_session": waits["id"], "asked_by": "ada", "bytes": 1}
    asked = {"session": idle["id"], "owner": "ada", "asking_session": other["id"], "asked_by": "linus", "bytes": 1}
    server.say(json.dumps({**json.loads(document(*sessions)), "room_requests": [asks, asked]}))
    expect(section(page, "Notebooks")).to_contain_text("Asked linus to make room")
    expect(
        page.get_by_text("linus waits for memory. Your idle notebook notebook1.ipynb holds 3.8 GiB.")
    ).to_be_visible()
    keep_picture(page, "ask-for-room")
    page.get_by_role("status").get_by_role("button", name="Offload notebook1.ipynb").click()
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_text("linus waits for memory.")).to_have_count(0)
    assert [request[:2] for request in server.requests] == [
        ("POST", "/sharedkernel/api/sessions/kernel-0/ask-for-room"),
        ("POST", "/sharedkernel/api/sessions/kernel-1/offload"),
    ]


def test_a_changed_quota_can_be_taken_back(open_page: OpenPage, server: PageServer) -> None:
    """A refusal shows beside its field, and people over their quota are marked.

    What is refused is not sent again when its field is left; but Enter tries again, and leaving it sends what was typed
    since.
    """
    status = json.loads(document(session(0, "grace", "idle", 0.5), session(1, "linus", "idle", 0.5)))
    for user in status["users"]:
        user["quota_bytes"] = 2**30 if user["name"] == "linus" else 2**28
        user["quota_used_bytes"] = 2**29
    server.say(json.dumps(status))
    page = open_page()
    people = show(page, "People")
    expect(people.locator(".sk-mod-over")).to_have_text("512 MiB of")
    row, quota = people.get_by_role("row", name="grace"), people.get_by_label("Quota of grace")
    alert = row.get_by_role("alert")
    server.refusal = "'lots' is not an amount of memory."
    quota.fill("lots")
    quota.press("Enter")
    expect(alert).to_contain_text(server.refusal)
    expect(quota).to_have_value("lots")
    keep_picture(page, "quota-refused")
    check_accessible(page)
    quota.blur()
    quota.focus()
    server.refusal = "it still is not."
    quota.press("Enter")
    expect(alert).to_contain_text(server.refusal)
    quota.fill("many")
    server.refusal = "nor is that."
    quota.blur()
    expect(alert).to_contain_text(server.refusal)
    assert [request[2]["users"]["grace"]["memory"] for request in server.requests] == ["lots", "lots", "many"]
    server.refusal = None
    path, undo = "/sharedkernel/api/quotas", row.get_by_role("button", name="Undo the change for grace")
    for memory, taken_back in (
        ("512 MiB", ("DELETE", f"{path}?user=grace&key=memory", None)),  # the configuration's value was there before
        ("256 MiB", ("PUT", path, {"users": {"grace": {"memory": "512 MiB"}}})),
    ):
        server.quotas = {"users": {"grace": limits_of(memory, "put: user grace"), "linus": limits_of("1GiB")}}
        quota.fill(memory)
        quota.press("Enter")
        expect(row.get_by_role("status")).to_contain_text("Saved")
        expect(quota).to_have_value(memory)
        undo.click()
        expect(undo).to_have_count(0)
        assert server.requests[-2:] == [("PUT", path, {"users": {"grace": {"memory": memory}}}), taken_back]


def test_who_is_no_admin_sees_less(open_page: OpenPage, server: PageServer) -> None:
    """No people, no policy to choose, nothing to do with others' sessions."""
    server.me = {**server.me, "admin": False}
    page = open_page()
    expect(row(page, "explore.ipynb").get_by_role("button", name="Shut down")).to_have_count(1)
    expect(row(page, "train.ipynb").get_by_role("button")).to_have_count(0)
    expect(section(page, "Notebooks").get_by_role("checkbox")).to_have_count(1)  # of notifications
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Now", "Timeline", "Connect"])
    expect(section(page, "Device").get_by_role("combobox")).to_have_count(0)


def test_it_says_how_to_connect(open_page: OpenPage) -> None:
    """The command is copied with a click, and a token is shown on request."""
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    connect = show(page, "Connect", "How to connect")
    connect.get_by_role("button", name="Copy the command").click()
    expect(connect.get_by_role("status").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == COMMAND
    connect.get_by_role("button", name="Make another token").click()
    expect(connect).to_contain_text("a-fresh-token")


def test_it_is_used_with_the_keyboard(open_page: OpenPage) -> None:
    """Buttons that can do nothing now are not on the way; Escape answers no."""
    page = open_page()
    expect(section(page, "Notebooks")).to_be_visible()
    section(page, "Notebooks").get_by_role("button", name="Memory").focus()
    names = []
    for _ in range(6):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''"))
    assert names == [
        *("Select fine-tuning.ipynb of ada", "Interrupt fine-tuning.ipynb", "Shut down fine-tuning.ipynb"),
        *("Select explore.ipynb of ada", "Offload explore.ipynb", "Shut down explore.ipynb"),
    ]
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Shut down explore.ipynb?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_markup_in_names_is_text(open_page: OpenPage, server: PageServer) -> None:
    """Of notebooks, users, devices, notes and states."""
    bad = session(1, MARKUP, MARKUP, notebook=f"{MARKUP}.ipynb", offload_note=MARKUP, queue_position=1)
    server.say(document(bad, session(2, "ada", "running", notebook=f"{MARKUP}\u202e.ipynb")))
    page = open_page()
    expect(section(page, "Notebooks")).to_contain_text(MARKUP)
    expect(section(page, "Notebooks")).to_contain_text("\\u{202e}")
    assert page.evaluate("document.body.dataset.broken") is None
    assert page.locator("img").count() == 0
