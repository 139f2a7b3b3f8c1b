"""The page by itself: whatever a gateway says, and whoever looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from tests.browser.figures import MARKUP, MIB, document, session
from tests.browser.lab import LabPage, check_accessible, start_lab_with
from tests.client.extension.fake_gateway import FakeGateway

_NAME_OF_FOCUSED = "(e => e.getAttribute('aria-label') ?? e.textContent)(document.activeElement)"


def named(notebook: str, user: str, state: str, **fields: Any) -> dict[str, Any]:
    """Return a session with 200 MiB, whose id is that of its notebook."""
    memory = {f"{kind}_bytes": 100 * MIB for kind in ("persistent", "framework")}
    names = {"id": notebook, "kernel_id": None, "notebook": f"{notebook}.ipynb"}
    return session(0, user, state, **{**names, **memory, **fields})


#: one of everything that there is to see
EVERYTHING = document(
    named("train", "ada", "running", ephemeral_bytes=50 * MIB),
    named("explore", "ada", "idle"),
    named("sweep", "ada", "queued", queue_position=1, waiting_for="lane"),
    named("large", "ada", "waiting", queue_position=2, waiting_for="memory"),
    named("monday", "ada", "offloaded", offloaded_bytes=700 * MIB, offload_note="1 pinned tensor stayed"),
    named("vision", "grace", "ready"),
    named("speech", "linus", "restoring", waiting_for="restore"),
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
        lane.update(id=2, number=1, device="cuda:0", queue=[*lane["queue"], "unknown"])
    for entry in status["sessions"]:
        entry.update(lane=2, device="cuda:0")
    status["sessions"][0].update(time_left_seconds=130.0)
    return json.dumps(status)


@pytest.fixture(scope="module")
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway(EVERYTHING) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def window(browser: Any, gateway: FakeGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """Return a page that shows the panel, for all tests."""
    environment = {URL_VARIABLE: gateway.url, TOKEN_VARIABLE: "any"}
    server = start_lab_with(tmp_path_factory.mktemp("page") / "lab", environment)
    page = LabPage(browser, server, size=(1280, 1250))
    page.show_panel()
    yield page
    page.close()
    server.stop()


@pytest.fixture
def lab(window: LabPage, gateway: FakeGateway) -> Iterator[LabPage]:
    """Return that page with one of everything in its panel."""
    gateway.say(EVERYTHING)
    expect(window.section("Notebooks").locator("tbody").get_by_role("row")).to_have_count(7)
    expect(window.panel.get_by_role("region", name="Device", exact=True)).to_be_visible()
    yield window
    assert window.errors == []


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
    expect(devices.get_by_role("img")).to_have_attribute("aria-label", "cuda:0: 1.4 GiB of 24.0 GiB in use")
    devices.get_by_text("Details").click()
    expect(devices).to_contain_text("cuda:0, lane 1")
    train = lab.section("Notebooks").get_by_role("row").filter(has_text="train.ipynb")
    expect(train).to_contain_text("youtrain.ipynbcuda:0runningabout 2 min left")
    check_accessible(lab.page, context="#sharedkernel-panel")


def test_markup_in_names_is_text(lab: LabPage, gateway: FakeGateway) -> None:
    """Of notebooks, users, devices, notes, states and sentences."""
    notes = {"offload_note": MARKUP, "waiting_for": MARKUP, "queue_position": 1}
    bad = session(1, MARKUP, MARKUP, notebook=f"{MARKUP}.ipynb", **notes)
    gateway.say(document(bad, session(2, "ada", "running", notebook=f"{MARKUP}\u202e.ipynb")))
    expect(lab.section("Notebooks")).to_contain_text(MARKUP)
    expect(lab.section("Notebooks")).to_contain_text("\\u{202e}")
    gateway.say(json.dumps({"message": MARKUP, "reason": "executor_unavailable"}))
    expect(lab.panel.get_by_role("status")).to_contain_text(MARKUP)
    assert lab.page.evaluate("document.body.dataset.broken") is None
    assert lab.panel.locator("img").count() == 0


def test_garbage_is_a_notice_and_the_page_goes_on(lab: LabPage, gateway: FakeGateway) -> None:
    """What was known stays, and is live again with the next good word.

    A gateway that has none is to be changed; where the environment decides, that is said in place of the form.
    """
    gateway.say(json.dumps({"device": {"name": "x", "kind": "y"}, "sessions": [{"id": "a"}], "lanes": [], "users": []}))
    expect(lab.panel.get_by_role("status")).to_contain_text("version")
    expect(lab.section("Notebooks").locator("tbody").get_by_role("row")).to_have_count(7)
    gateway.say("no JSON")
    expect(lab.panel).to_contain_text(f"{URL_VARIABLE} and {TOKEN_VARIABLE} in this Jupyter server's environment")
    expect(lab.panel.get_by_role("form")).to_have_count(0)
    gateway.say(EVERYTHING)
    expect(lab.panel.get_by_role("status")).to_be_empty()


def test_settings_hold_at_once(lab: LabPage) -> None:
    """Units are those of the settings."""
    expect(lab.section("Device")).to_contain_text("1.4 / 24.0 GiB")
    url = "/lab/api/settings/sharedkernel%3Aplugin"
    assert lab.server.ask("PUT", url, {"raw": '{"units": "decimal"}'}).status == 204
    try:
        lab.reload()
        lab.show_panel()
        expect(lab.section("Device")).to_contain_text("1.5 / 25.8 GB")
    finally:
        lab.server.ask("PUT", url, {"raw": "{}"})
