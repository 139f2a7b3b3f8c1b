"""The gateway's own page: whatever its figures are, and whoever looks at it on whatever screen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from sharedkernel.gateway.fleet.rules import COLOURS
from tests.browser.figures import in_use, memory_of_users
from tests.browser.lab import PATIENCE, check_accessible, keep_picture
from tests.browser.page_server import STATIC, PageServer

_MIB = 1024**2
_GIB = 1024**3
_MARKUP = "<img src=x onerror=\"document.body.dataset.broken='yes'\">"
COMMAND = "pip install jupyter-sharedkernel\nsharedkernel install https://gpu-host:8585"
_WIDTHS = (1280, 700, 390)
NAMES = ["ada", "grace", "linus", *(f"student{number:02}" for number in range(1, 28))]
#: the sizes of all text
_SIZES = """
[...document.querySelectorAll('#page *')].filter(element => [...element.childNodes].some(
  node => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
).map(element => getComputedStyle(element).fontSize)
"""

OpenPage = Callable[..., Page]


def session(number: int, user: str, state: str, gib: float = 0.5, **fields: Any) -> dict[str, Any]:
    """Return a session that has *gib* of memory between iterations."""
    live = int(gib / 4 * _GIB) if state == "running" else 0
    memory = {"persistent_bytes": int(gib * _GIB), "ephemeral_bytes": live, "framework_bytes": 30 * _MIB}
    names = {"id": f"0123456789{number:02}", "kernel_id": f"kernel-{number}", "notebook": f"notebook{number}.ipynb"}
    return {"user": user, "state": state, "idle_seconds": 60.0 * number, **names, **memory, **fields}


def document(*sessions: dict[str, Any]) -> str:
    """Return a status document of a GPU of 24 GiB whose figures add up."""
    users = memory_of_users(sessions)
    device = {
        "name": "NVIDIA L4",
        "kind": "cuda",
        "capacity_bytes": 24 * _GIB,
        "used_bytes": sum(map(in_use, users.values())),
        "policy": "fair",
        "utilisation": 0.83,
        "temperature_celsius": 61.0,
        "power_watts": 58.3,
        "power_limit_watts": 72.0,
    }
    running = [entry["id"] for entry in sessions if entry["state"] == "running"]
    queued = [entry["id"] for entry in sessions if entry["state"] == "queued"]
    lane = {"id": 1, "size_bytes": _GIB, "holder": running[0] if running else None, "queue": queued}
    return json.dumps(
        {
            "device": device,
            "lanes": [lane],
            "users": [
                {"name": user, "colour": colour, "share": 1.0, "quota_bytes": 8 * _GIB, **memory}
                for colour, (user, memory) in zip(cycle(COLOURS), users.items(), strict=False)
            ],
            "sessions": sessions,
        }
    )


def of_users(count: int) -> str:
    """Return a document in which *count* users run, wait and idle; ada, grace and linus are among them."""
    size = 3.8 if count == 3 else 0.6
    students = [session(number, NAMES[number - 7], "idle", size / 2 + number / 100) for number in range(10, 7 + count)]
    for student in students[::4]:
        student.update(state="offloaded", offloaded_bytes=student["persistent_bytes"], persistent_bytes=0)
    large = session(4, "linus", "waiting", size, notebook="large.ipynb", queue_position=3, waiting_for="memory")
    sessions = [
        session(0, "ada", "idle", size, notebook="explore.ipynb"),
        session(1, "ada", "queued", size / 2, notebook="fine-tuning.ipynb", queue_position=2, waiting_for="lane"),
        session(2, "grace", "running", size, notebook="train.ipynb", time_left_seconds=130.0),
        session(3, "grace", "queued", size / 3, notebook="plots.ipynb", queue_position=1, waiting_for="lane"),
        large,
        *students,
    ]
    device = json.loads(document(*sessions))["device"]
    free_bytes = device["capacity_bytes"] - device["used_bytes"]
    large.update(free_bytes=free_bytes, needed_bytes=free_bytes + _GIB // 2, memory_wait_seconds=26.0)
    large.update(room_from=sessions[0]["id"])
    return document(*sessions)


def timeline_of(said: str) -> dict[str, Any]:
    """Return what the sessions of a document did in two minutes: turns, waits for memory, pauses, offloads."""
    rows = []
    for place, entry in enumerate(json.loads(said)["sessions"][:24]):
        segments: list[list[Any]] = []
        at = float(3 * (place % 7))
        while at < 112:
            if entry["state"] == "offloaded":
                segments += [
                    [at, at + 1.5, {"offloading": 1.5}, None],
                    [at + 1.5, 120, {"offloaded": 118.5 - at}, None],
                ]
                break
            if place % 3 == 2:
                segments.append([at, at + 4, {"running": 1.9, "queued": 2.1}, None])
            else:
                segments += [[at, at + 2, {"queued": 2.0}, None], [at + 2, at + 5, {"running": 3.0}, None]]
            at += 8 + 5 * (place % 4)
        if entry["state"] == "waiting":
            segments = [*segments[:4], [70, 120, {"waiting": 50.0}, 6 << 30]]
        rows.append(
            {**{name: entry[name] for name in ("user", "notebook")}, "session": entry["id"], "segments": segments}
        )
    begin = 1_790_000_000.0
    device = {"device": None, "begin": begin, "end": begin + 120, "oldest": begin, "rows": rows, "more_rows": 0}
    return {"devices": [device]}


def history_of(said: str) -> dict[str, Any]:
    """Return an hour in which a document's users came one after the other, and the executor was away for a while."""
    status = json.loads(said)
    device, users = status["device"], {}
    for place, entry in enumerate(status["users"]):
        wave = [1 + 0.3 * math.sin(step / (9 + 5 * place)) for step in range(360)]
        users[entry["name"]] = [
            int(in_use(entry) * wave[step]) if step > 25 * place % 300 else 0 for step in range(360)
        ]
    used: list[int | None] = [sum(values[step] for values in users.values()) for step in range(360)]
    used[150:165] = [None] * 15
    told = dict(sorted(users.items(), key=lambda entry: -sum(entry[1]))[:8])
    busy = [0.5 + 0.4 * math.sin(step / 11) for step in range(360)]
    shown = {"name": device["name"], "capacity_bytes": device["capacity_bytes"], "used_bytes": used}
    return {"step_seconds": 10, "devices": [{**shown, "utilisation": busy, "users": told}]}


@pytest.fixture
def server(browser: object) -> Iterator[PageServer]:
    if not (STATIC / "page.js").exists():
        pytest.skip("the gateway's page is not built; run `python labextension/build_backend.py`")
    with PageServer() as server:
        server.me = {"user": "ada", "admin": True, "auth": "token", "version": "1", "install_command": COMMAND}
        server.quotas = {"users": {name: limits_of("8GiB") for name in NAMES[:3]}}
        server.history = history_of(of_users(3))
        server.say(of_users(3))
        server.timeline = timeline_of(of_users(3))
        yield server


def limits_of(memory: str, source: str = "config: default") -> dict[str, Any]:
    return {"memory": {"value": memory, "source": source}, "share": {"value": 1.0}, "sessions": {"value": None}}


@pytest.fixture
def open_page(browser: Browser, server: PageServer) -> Iterator[OpenPage]:
    """Return what opens the page; no window may have complained, least of all of the content security policy."""
    errors: list[str] = []
    contexts = []

    def open_one(*, width: int = 1280, clock: bool = False, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
        if clock:
            page.clock.install()
        page.goto(server.url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


def section(page: Page, title: str) -> Any:
    return page.get_by_role("region", name=title)


def show(page: Page, tab: str, title: str | None = None) -> Any:
    """Open a part of the page; return its section, whose title is that of the tab unless it is given."""
    page.get_by_role("navigation").get_by_role("link", name=tab, exact=True).click()
    return section(page, title or tab)


def row(page: Page, notebook: str) -> Any:
    """Return a notebook's row of the table."""
    return section(page, "Notebooks").get_by_role("row").filter(has_text=notebook)


@pytest.mark.parametrize(("users", "scheme"), [(3, "light"), (30, "dark")])
def test_nothing_keeps_anybody_out(open_page: OpenPage, server: PageServer, users: int, scheme: str) -> None:
    """On any screen axe finds nothing, nothing is wider than the screen, and text has one of four sizes."""
    server.say(of_users(users))
    server.timeline = timeline_of(of_users(users))
    server.quotas = {"users": {name: limits_of("8GiB") for name in NAMES[:users]}}
    page = open_page(color_scheme=scheme)
    for width in _WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        expect(row(page, "train.ipynb")).to_contain_text("grace")
        expect(section(page, "Device").get_by_role("img", name="last hour")).to_be_visible()
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
    """By a click, with the header that protects from forged requests; shutting down asks first."""
    page = open_page()
    mine = section(page, "Notebooks")
    mine.get_by_role("button", name="Offload explore.ipynb").click()
    mine.get_by_role("button", name="Interrupt fine-tuning.ipynb").click()
    with page.expect_response(lambda response: response.request.method == "DELETE"):
        mine.get_by_role("button", name="Shut down explore.ipynb").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        mine.get_by_role("button", name="Shut down explore.ipynb").click()
        page.get_by_role("dialog").get_by_role("button", name="Shut down").click()
    assert sorted(request[:2] for request in server.requests) == [
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
    mine = {"needed_bytes": 6 * _GIB, "free_bytes": _GIB, "waiting_for": "memory", "notebook": "large.ipynb"}
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


def test_a_refusal_is_shown(open_page: OpenPage, server: PageServer) -> None:
    """In the gateway's own words, until it is dismissed."""
    server.refusal = "The session is not idle; interrupt it first."
    page = open_page()
    section(page, "Notebooks").get_by_role("button", name="Offload explore.ipynb").click()
    expect(page.get_by_role("alert").first).to_contain_text(f"explore.ipynb could not be offloaded: {server.refusal}")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text(server.refusal)).to_have_count(0)


def test_a_changed_quota_can_be_taken_back(open_page: OpenPage, server: PageServer) -> None:
    """A refusal shows beside its field, and people over their quota are marked."""
    status = json.loads(document(session(0, "grace", "idle", 0.5), session(1, "linus", "idle", 0.5)))
    for user in status["users"]:
        user["quota_bytes"] = 2**30 if user["name"] == "linus" else 2**28
        user["quota_used_bytes"] = 2**29
    server.say(json.dumps(status))
    page = open_page()
    people = show(page, "People")
    expect(people.locator(".sk-mod-over")).to_have_text("512 MiB of")
    row, quota = people.get_by_role("row", name="grace"), people.get_by_label("Quota of grace")
    server.refusal = "'lots' is not an amount of memory."
    quota.fill("lots")
    quota.press("Enter")
    expect(row.get_by_role("alert")).to_contain_text(server.refusal)
    expect(quota).to_have_value("lots")
    keep_picture(page, "quota-refused")
    check_accessible(page)
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


def test_a_quota_that_is_refused_is_sent_once(open_page: OpenPage, server: PageServer) -> None:
    """Not again when its field is left; but Enter tries again, and leaving it sends what was typed since."""
    page = open_page()
    people = show(page, "People")
    quota, alert = people.get_by_label("Quota of grace"), people.get_by_role("row", name="grace").get_by_role("alert")
    server.refusal = "it is not an amount of memory."
    quota.fill("lots")
    quota.press("Enter")
    expect(alert).to_contain_text(server.refusal)
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


def test_who_is_no_admin_sees_less(open_page: OpenPage, server: PageServer) -> None:
    """No people, no policy to choose, nothing to do with others' sessions."""
    assert server.me is not None
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
    bad = session(1, _MARKUP, _MARKUP, notebook=f"{_MARKUP}.ipynb", offload_note=_MARKUP, queue_position=1)
    server.say(document(bad, session(2, "ada", "running", notebook=f"{_MARKUP}\u202e.ipynb")))
    page = open_page()
    expect(section(page, "Notebooks")).to_contain_text(_MARKUP)
    expect(section(page, "Notebooks")).to_contain_text("\\u{202e}")
    assert page.evaluate("document.body.dataset.broken") is None
    assert page.locator("img").count() == 0
