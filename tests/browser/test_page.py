"""The page by itself: whatever a gateway says, and whoever looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from playwright.sync_api import expect

from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from sharedkernel.gateway.fleet.rules import COLOURS
from tests.browser.figures import in_use, memory_of_users
from tests.browser.lab import LabPage, check_accessible, start_lab_with
from tests.client.extension.fake_gateway import FakeGateway
from tests.client.extension.server import JupyterServer

_MIB = 1024**2
_NAME_OF_FOCUSED = "(e => e.getAttribute('aria-label') ?? e.textContent)(document.activeElement)"
_MARKUP = "<img src=x onerror=\"document.body.dataset.broken='yes'\">"


def session(name: str, user: str, state: str, **fields: Any) -> dict[str, Any]:
    memory = {f"{kind}_bytes": 100 * _MIB for kind in ("persistent", "framework")}
    return {"id": name, "user": user, "state": state, "notebook": f"{name}.ipynb", "lane": 1, **memory, **fields}


def document(*sessions: dict[str, Any], queue: tuple[str, ...] = ()) -> str:
    """Return a status document whose figures add up."""
    users = memory_of_users(sessions)
    holder = next((session["id"] for session in sessions if session["state"] == "running"), None)
    return json.dumps(
        {
            "device": {
                "name": "host (8 x x86_64)",
                "kind": "host",
                "capacity_bytes": 8192 * _MIB,
                "reserve_bytes": 0,
                "used_bytes": sum(map(in_use, users.values())),
                "policy": "fair",
                "quantum_seconds": 0.05,
            },
            "lanes": [{"id": 1, "size_bytes": 1024 * _MIB, "holder": holder, "queue": list(queue)}],
            "users": [
                {"name": user, "colour": colour, "share": 1.0, "quota_bytes": 4096 * _MIB, **memory}
                for colour, (user, memory) in zip(cycle(COLOURS), users.items(), strict=False)
            ],
            "sessions": sessions,
        }
    )


#: one of everything that there is to see
EVERYTHING = document(
    session("train", "ada", "running", ephemeral_bytes=50 * _MIB),
    session("explore", "ada", "idle"),
    session("sweep", "ada", "queued", queue_position=1, waiting_for="lane"),
    session("large", "ada", "waiting", queue_position=2, waiting_for="memory"),
    session("monday", "ada", "offloaded", offloaded_bytes=700 * _MIB, offload_note="1 pinned tensor stayed"),
    session("vision", "grace", "ready"),
    session("speech", "linus", "restoring", waiting_for="restore"),
    queue=("sweep", "unknown"),
)


def of_two_devices() -> str:
    """Return EVERYTHING with what several devices add: one that serves, and one whose executor is away."""
    status = json.loads(EVERYTHING)
    away = {"available": False, "message": "the executor of cuda:1 does not answer.", "used_bytes": None}
    status["devices"] = [
        {**status["device"], "name": "cuda:0", "description": "A card", "available": True, "message": None},
        {**status["device"], "name": "cuda:1", "description": None, **away},
    ]
    for user in status["users"]:
        memory = {name: user[name] for name in user if name.endswith("_bytes")}
        user["devices"] = [{**memory, "device": "cuda:0"}]
    for lane in status["lanes"]:
        lane.update(id=2, number=1, device="cuda:0")
    for entry in status["sessions"]:
        entry.update(lane=2, device="cuda:0")
    status["sessions"][0].update(time_left_seconds=130.0)
    return json.dumps(status)


@pytest.fixture(scope="module")
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway(EVERYTHING) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def server(browser: object, gateway: FakeGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    environment = {URL_VARIABLE: gateway.url, TOKEN_VARIABLE: "any"}
    server = start_lab_with(tmp_path_factory.mktemp("page") / "lab", environment)
    yield server
    server.stop()


@pytest.fixture
def lab(browser: Any, server: JupyterServer, gateway: FakeGateway) -> Iterator[LabPage]:
    """Return a page that shows the panel, with one of everything in it."""
    gateway.say(EVERYTHING)
    page = LabPage(browser, server, size=(1280, 1250))
    page.show_panel()
    expect(page.section("Notebooks").locator("tbody").get_by_role("row")).to_have_count(7)
    yield page
    page.close()
    assert page.errors == []


def test_nothing_in_the_panel_keeps_anybody_out(lab: LabPage) -> None:
    """Roles, labels, contrast: axe finds nothing."""
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.use_theme(theme)
        check_accessible(lab.page, context="#sharedkernel-panel")


def test_the_panel_is_used_with_the_keyboard(lab: LabPage) -> None:
    """From the palette into it, through its buttons, each with a name, and around in order."""
    lab.page.keyboard.press("Escape")
    lab.command("Show Shared GPU")
    expect(lab.panel).to_be_focused()
    names = []
    for _ in range(7):
        lab.page.keyboard.press("Tab")
        names.append(lab.page.evaluate(_NAME_OF_FOCUSED))
    # what cannot be done now is not on the way
    assert names == [
        *("Person", "Notebook", "State", "Memory", "Interrupt train.ipynb", "Shut down train.ipynb"),
        "Interrupt sweep.ipynb",
    ]
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("Shut down sweep.ipynb?")
    lab.page.keyboard.press("Escape")


def test_several_devices_are_shown_one_by_one(lab: LabPage, gateway: FakeGateway) -> None:
    """What is away says so; sessions say where they are, and what is left of their cells."""
    gateway.say(of_two_devices())
    devices = lab.section("Devices")
    expect(devices).to_contain_text("the executor of cuda:1 does not answer.")
    expect(devices.get_by_role("img")).to_have_count(1)
    expect(devices.get_by_role("img")).to_have_attribute("aria-label", "cuda:0: 1.4 GiB of 8.0 GiB in use")
    devices.get_by_text("Details").click()
    expect(devices).to_contain_text("cuda:0, lane 1")
    train = lab.section("Notebooks").get_by_role("row").filter(has_text="train.ipynb")
    expect(train).to_contain_text("youtrain.ipynbcuda:0runningabout 2 min left")
    check_accessible(lab.page, context="#sharedkernel-panel")


def test_markup_in_names_is_text(lab: LabPage, gateway: FakeGateway) -> None:
    """Of notebooks, users, devices, notes, states and sentences."""
    bad = session(
        "x", _MARKUP, _MARKUP, notebook=f"{_MARKUP}.ipynb", offload_note=_MARKUP, waiting_for=_MARKUP, queue_position=1
    )
    gateway.say(document(bad, session("mine", "ada", "running", notebook=f"{_MARKUP}\u202e.ipynb"), queue=("x",)))
    expect(lab.section("Notebooks")).to_contain_text(_MARKUP)
    expect(lab.section("Notebooks")).to_contain_text("\\u{202e}")
    gateway.say(json.dumps({"message": _MARKUP, "reason": "executor_unavailable"}))
    expect(lab.panel.get_by_role("status")).to_contain_text(_MARKUP)
    assert lab.page.evaluate("document.body.dataset.broken") is None
    assert lab.panel.locator("img").count() == 0


def test_garbage_is_a_notice_and_the_page_goes_on(lab: LabPage, gateway: FakeGateway) -> None:
    """What was known stays, and is live again with the next good word."""
    gateway.say(json.dumps({"device": {"name": "x", "kind": "y"}, "sessions": [{"id": "a"}], "lanes": [], "users": []}))
    expect(lab.panel.get_by_role("status")).to_contain_text("version")
    expect(lab.section("Notebooks").locator("tbody").get_by_role("row")).to_have_count(7)
    gateway.say(EVERYTHING)
    expect(lab.panel.get_by_role("status")).to_be_empty()


def test_settings_hold_at_once(lab: LabPage, server: JupyterServer) -> None:
    """Units are those of the settings."""
    expect(lab.section("Device")).to_contain_text("1.4 / 8.0 GiB")
    url = "/lab/api/settings/sharedkernel%3Aplugin"
    assert server.ask("PUT", url, {"raw": '{"units": "decimal"}'}).status == 204
    try:
        lab.reload()
        lab.show_panel()
        expect(lab.section("Device")).to_contain_text("1.5 / 8.6 GB")
    finally:
        server.ask("PUT", url, {"raw": "{}"})
