"""The gateway's own page for admins: many notebooks at once, the audit log, and where new notebooks go."""

from __future__ import annotations

import itertools
import json
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.figures import document, limits_of, session
from tests.browser.gateway_page import OpenPage, section, show
from tests.browser.lab import check_accessible
from tests.browser.page_server import PageServer

_WIDTHS = (1280, 390)


def selection(page: Page) -> Any:
    return section(page, "Selected notebooks")


def audit_of(count: int) -> dict[str, Any]:
    """Return what the gateway answers of *count* acts."""
    entries = [
        {
            "time": f"2026-11-25T12:{59 - number:02}:00.000+00:00",
            "user": ("ada", "grace", None)[number % 3],
            "address": "10.0.0.7",
            "action": ("end session", "start session", "refuse token")[number % 3],
            **({} if number % 3 == 2 else {"session": f"{number:08}-0000", "owner": "grace", "status": 204}),
        }
        for number in range(count)
    ]
    return {"entries": entries, "older": True, "file": "/run/sharedkernel/audit.jsonl"}


def test_people_s_idle_notebooks_are_offloaded_at_once(open_page: OpenPage, server: PageServer) -> None:
    """After one question that says how many there are; those in use are left alone.

    With notebooks selected and the audit log shown, axe finds nothing, and nothing is wider than the screen.
    """
    server.audit = audit_of(7)
    page = open_page(timezone_id="UTC")
    people = show(page, "People")
    everybody = people.get_by_label("Select the notebooks of all 3 people")
    expect(selection(page)).to_have_count(0)
    people.get_by_label("Select the notebooks of ada").check()
    expect(selection(page)).to_contain_text("2 notebooks selected: ada")
    assert everybody.evaluate("box => box.indeterminate")
    everybody.check()
    expect(selection(page)).to_contain_text("5 notebooks selected: ada, grace and linus")
    selection(page).get_by_role("button", name="Offload 1 idle").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Offload 1 notebook?")
    expect(dialog).to_contain_text("Of ada. Their memory leaves the device until their next cells")
    expect(dialog).to_contain_text("4 more in use stay as they are.")
    dialog.get_by_role("button", name="Offload 1").click()
    expect(selection(page)).to_have_count(0)
    assert [request[:2] for request in server.requests] == [("POST", "/sharedkernel/api/sessions/kernel-0/offload")]

    box = show(page, "People").get_by_label("Select the notebooks of grace")
    box.click()
    expect(box).to_be_checked()
    for width, scheme in itertools.product(_WIDTHS, ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        for tab, title, rows in (("People", "People", 4), ("Audit", "Audit log", 8)):
            expect(show(page, tab, title).get_by_role("row")).to_have_count(rows)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            check_accessible(page)


def test_selected_notebooks_are_stopped_and_failures_told_in_one_sentence(
    open_page: OpenPage, server: PageServer
) -> None:
    """Nothing happens without the answer to a question; what one cannot stop keeps none of the others."""
    sessions = [session(number, user, "idle", 0.1) for number, user in enumerate(("grace", "grace", "linus", "mary"))]
    lingering = session(4, "mary", "idle", 0.1, lingering=True)
    server.say(document(*sessions, lingering, session(5, "ada", "running")))
    server.quotas = {"users": {name: limits_of("8GiB") for name in ("ada", "grace", "linus", "mary", "tim")}}
    page = open_page()
    expect(show(page, "People").get_by_label("Select the notebooks of tim")).to_be_disabled()
    others = show(page, "Now", "Notebooks")
    expect(others.get_by_label("Select notebook")).to_have_count(5)
    for name in ("notebook0.ipynb of grace", "notebook1.ipynb of grace", "notebook2.ipynb of linus"):
        others.get_by_label(f"Select {name}").check()
    show(page, "People").get_by_label("Select the notebooks of mary").check()
    show(page, "Now")
    expect(others.get_by_label("Select notebook3.ipynb of mary")).to_be_checked()
    selection(page).get_by_role("button", name="Stop 4").click()
    page.get_by_role("button", name="Cancel").click()
    assert server.requests == []
    show(page, "People").get_by_label("Select the notebooks of mary").uncheck()
    show(page, "Now")
    others.get_by_label("Select notebook1.ipynb of grace").uncheck()
    others.get_by_label("Select notebook1.ipynb of grace").check()
    server.refusal, server.refused = "it is being moved.", ["kernel-1"]
    selection(page).get_by_role("button", name="Stop 3").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop 3 notebooks?Of grace and linus. None of them is in use now.")
    dialog.get_by_role("button", name="Stop 3").click()
    expect(page.get_by_role("alert").first).to_contain_text(
        "1 of 3 notebooks could not be stopped: notebook1.ipynb of grace (it is being moved)."
    )
    expect(selection(page)).to_have_count(0)
    assert sorted(request[:2] for request in server.requests) == [
        ("DELETE", f"/api/kernels/kernel-{number}") for number in range(3)
    ]


def test_the_audit_log_is_read_on_request(open_page: OpenPage, server: PageServer) -> None:
    """Newest first, searched by person, markup as text; it is not asked for before."""
    server.audit = audit_of(3)
    server.audit["entries"].append({"user": "<img src=x>", "action": "end session", "status": 409, "session": "s"})
    page = open_page(timezone_id="UTC")
    expect(section(page, "Device")).to_be_visible()
    assert server.searched == []
    audit = show(page, "Audit", "Audit log")
    rows = audit.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("25 Nov, 12:59:00ada" + "end session · 00000000 of grace" + "10.0.0.7")
    expect(rows.nth(3)).to_contain_text("refuse token")
    expect(rows.nth(4)).to_contain_text("<img src=x>end session · s · refused (409)")
    expect(audit).to_contain_text("These are the newest. All are in /run/sharedkernel/audit.jsonl")
    server.audit = {"entries": [], "older": False, "file": "/run/sharedkernel/audit.jsonl"}
    audit.get_by_role("searchbox").fill("grace & co")
    expect(audit).to_contain_text("Nothing was found.")
    assert server.searched == ["", "grace & co"]
    server.audit = audit_of(1)
    audit.get_by_role("button", name="Read again").click()
    expect(rows).to_have_count(2)
    server.audit = {"entries": [], "older": False, "file": None}
    audit.get_by_role("button", name="Read again").click()
    expect(audit).to_contain_text("This gateway keeps no audit log.")


def test_it_says_where_new_notebooks_go(open_page: OpenPage, server: PageServer) -> None:
    """Where there are several devices, and from where the rule comes."""
    said = json.loads(document(session(0, "ada", "idle")))
    page = open_page()
    expect(section(page, "Device").get_by_label("Policy")).to_have_value("fair")
    expect(section(page, "Device")).not_to_contain_text("New notebooks")
    devices = [{**said["device"], "name": name} for name in ("cuda:0", "cuda:1")]
    server.say(json.dumps({**said, "devices": devices, "placement": "least-loaded"}))
    expect(section(page, "Devices")).to_contain_text(
        "New notebooks: least-loadedEach starts on the device with the fewest notebooks in use.From"
    )
