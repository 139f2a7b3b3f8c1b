"""The link of an invitation in a real browser, in front of a real gateway: from the link to a signed-in page."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.local_stack import LocalStack
from tests.browser.gateway_page import OpenPage, apart, sign_in
from tests.browser.lab import check_accessible, keep_picture
from tests.gateway.client import Client

_CLASS = "/sharedkernel/api/class"
#: what has the keyboard's focus
_FOCUSED = "(document.activeElement.textContent || '').trim()"


@pytest.fixture
def links(stack: LocalStack) -> Iterator[dict[str, str]]:
    """Begin a class of three, and return their links."""
    ada = Client(stack.gateway_url, stack.token("ada"))
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    body = {"users": ["maria", "niels", "otto"], "limits": {"memory": "64MiB"}, "until": until.isoformat()}
    answer = apart(ada.request("PUT", _CLASS, body))
    assert answer.status == 200, answer
    yield {
        user: f"{stack.gateway_url}/{answer.body['invitation_path']}#{code}"
        for user, code in answer.body["codes"].items()
    }
    assert apart(ada.request("DELETE", _CLASS)).status == 200


def check(page: Page, name: str) -> None:
    """Check that axe finds nothing and nothing is wider than the screen, whatever that is."""
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        keep_picture(page, f"invitation-{name}-{width}")
        check_accessible(page)


def test_a_link_leads_to_the_command_that_connects(
    open_window: OpenPage, links: dict[str, str], stack: LocalStack
) -> None:
    """The code leaves the address bar at once; the command holds a good token; the browser is signed in."""
    user = "maria"
    page = open_window(links[user])
    code = links[user].partition("#")[2]
    button = page.get_by_role("button", name="Yes, join the class")
    expect(button).to_be_visible()
    sentence = rf"{user}, you are invited to a class of ada on a shared GPU\. It ends (at|on) "  # on: after midnight
    expect(page.get_by_text(re.compile(sentence))).to_be_visible()
    expect(page.get_by_text("Are you at the computer with JupyterLab?")).to_be_visible()
    assert page.url == links[user].partition("#")[0]
    check(page, "link")
    page.keyboard.press("Tab")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    heading = page.get_by_role("heading", name=f"Welcome, {user}")
    expect(heading).to_be_focused()
    expect(page.get_by_text("your sessions and their variables end with it")).to_be_visible()
    check(page, "joined")
    command = page.locator("code").inner_text()
    assert f"sharedkernel install --gateway-url {stack.gateway_url} --user --token " in command
    client = Client(stack.gateway_url, command.rpartition(" ")[2])
    assert apart(client.request("GET", "/sharedkernel/api/quotas")).body["users"].keys() == {user}
    page.get_by_role("link", name="See who uses the GPU").click()
    expect(page.get_by_role("link", name="Connect")).to_be_visible()
    expect(page.get_by_role("banner")).to_contain_text(user)
    assert code not in page.content()
    page.go_back()
    assert code not in page.url
    expect(page.get_by_text("There is no invitation in this address.")).to_be_visible()
    check(page, "empty")


def test_a_link_that_was_used_opens_again_in_its_browser_alone(
    open_window: OpenPage, links: dict[str, str], stack: LocalStack
) -> None:
    """There the command has another token, until it has run; elsewhere the page says so, and opens nothing."""
    first = open_window(links["otto"])
    first.get_by_role("button", name="Yes, join the class").click()
    expect(first.get_by_role("heading", name="Welcome, otto")).to_be_visible()
    earlier = first.locator("code").inner_text().rpartition(" ")[2]
    assert "sharedkernel-invitation" not in first.evaluate("document.cookie")
    first.goto("about:blank")
    first.goto(links["otto"])
    first.get_by_role("button", name="Show the command again").click()
    expect(first.get_by_role("heading", name="Welcome, otto")).to_be_visible()
    token = first.locator("code").inner_text().rpartition(" ")[2]
    assert token != earlier
    quotas = "/sharedkernel/api/quotas"
    assert apart(Client(stack.gateway_url, earlier).request("GET", quotas)).status == 403
    assert apart(Client(stack.gateway_url, token).request("GET", quotas)).status == 200  # as the command does
    first.goto("about:blank")
    first.goto(links["otto"])
    expect(first.get_by_role("alert")).to_contain_text("its command has run")
    second = open_window(links["otto"])
    expect(second.get_by_role("alert")).to_contain_text("This invitation of otto was used already")
    check(second, "used")
    assert "was used already" in second.evaluate(_FOCUSED)
    expect(second.get_by_role("button")).to_have_count(0)
    second.get_by_role("link", name="Sign in with a token").click()
    expect(second.get_by_label("Your token")).to_be_visible()


def invitations(page: Page, token: str) -> Locator:
    """Sign in, and open the part of the page that invites people."""
    sign_in(page, token)
    page.get_by_role("link", name="People").click()
    return page.get_by_role("region", name="Invitations")


def agree(page: Page, verb: str, question: str) -> None:
    """Press the button *verb* of the invitations, and agree to what is asked then."""
    page.get_by_role("region", name="Invitations").get_by_role("button", name=verb).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(question)
    dialog.get_by_role("button", name=verb).click()


@pytest.fixture
def classless(stack: LocalStack) -> Iterator[None]:
    """End what classes there are after the test."""
    yield
    ada = Client(stack.gateway_url, stack.token("ada"))
    for name in apart(ada.request("GET", _CLASS)).body["classes"]:
        apart(ada.request("DELETE", f"{_CLASS}?group={name}"))


@pytest.mark.usefixtures("classless")
def test_an_admin_invites_people_and_ends_their_class(open_window: OpenPage, stack: LocalStack) -> None:
    """From the names to the links, from those who have joined to the end, without a terminal."""
    page = open_window(stack.gateway_url)
    classes = invitations(page, stack.token("ada"))
    names, group = classes.get_by_label("People, by name, or a roster"), classes.get_by_label("Class")
    names.fill("grace")
    group.fill("physics")
    agree(page, "Invite", "Invite 1 person?Each gets a link: grace")
    expect(classes.get_by_role("alert")).to_contain_text("grace is a user here already")
    for text, sentence in [
        ("maria, niels maria", "maria is named twice"),
        ("Maria Kirch,maria@x.org\nNiels Bohr,niels@x.org", "text, line 1: no column is called user, username,"),
    ]:
        names.fill(text)
        classes.get_by_role("button", name="Invite").click()
        expect(classes.get_by_role("alert")).to_contain_text(sentence)
    names.fill("name,email\nMaria Kirch,maria@x.org\nNiels Bohr,niels@x.org")
    classes.get_by_label("Memory of each").fill("64MiB")
    classes.get_by_role("button", name="Invite").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(classes.get_by_text("joined")).to_have_count(0)
    agree(page, "Invite", "Invite 2 people?Each gets a link: maria, niels")
    links = dict(line.split() for line in classes.locator("code").inner_text().splitlines())
    assert links.keys() == {"maria", "niels"}
    expect(classes).to_contain_text("0 of 2 joined; not yet: maria, niels")
    names.fill("otto")
    group.fill("physics")
    agree(page, "Invite", "otto")
    expect(classes).to_contain_text("0 of 3 joined")
    old = classes.locator("code").inner_text()
    classes.get_by_text("Replace a link").click()
    classes.get_by_role("button", name="Replace link of otto").click()
    page.get_by_role("dialog").get_by_role("button", name="Replace link").click()
    expect(classes).to_contain_text("The new link of otto. It is shown only now")
    expect(classes).not_to_contain_text(old)
    check(page, "classes")
    student = open_window(links["maria"])
    expect(student.get_by_text("maria, you are invited to the class physics of ada")).to_be_visible()
    student.get_by_role("button", name="Yes, join the class").click()
    expect(student.get_by_role("heading", name="Welcome, maria")).to_be_visible()
    expect(classes).to_contain_text("1 of 3 joined; not yet: niels, otto")
    page.set_viewport_size({"width": 1280, "height": 900})
    later = datetime.datetime.now() + datetime.timedelta(hours=7)
    field, move = classes.get_by_label("End of physics", exact=True), classes.get_by_role("button", name="Move end")
    field.fill("2026-01-01T10:00")
    move.click()
    refusal = "The end could not be moved: 2026-01-01T"
    expect(page.locator("form", has=page.get_by_label("End of physics")).get_by_role("alert")).to_contain_text(refusal)
    expect(page.get_by_text(refusal)).to_have_count(1)
    check(page, "moved")
    page.set_viewport_size({"width": 1280, "height": 900})
    field.fill(f"{later:%Y-%m-%dT%H:%M}")
    move.click()
    expect(page.get_by_text(re.compile(f"^A class of 3 ends .*{later:%H:%M}; 1 joined"))).to_be_visible()
    expect(page.get_by_text(refusal)).to_have_count(0)
    end = classes.get_by_role("button", name="End the class physics")
    end.click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "End the class physics?Of 3 people. Their tokens, sessions and variables end now"
    )
    page.get_by_role("dialog").get_by_role("button", name="End class").click()
    expect(end).to_have_count(0)
    expect(classes.get_by_text("The class physics is over; 0 sessions ended.")).to_be_visible()


@pytest.mark.usefixtures("classless")
def test_an_admin_adds_people_without_an_end(open_window: OpenPage, stack: LocalStack) -> None:
    """As `sharedkernel token add` does, and only newcomers; the table has them at once, the audit log their names."""
    page = open_window(stack.gateway_url)
    classes = invitations(page, stack.token("ada"))
    classes.get_by_label("No end").check()
    expect(classes.get_by_label("Until")).to_have_count(0)
    expect(classes).to_contain_text("a token that is good until it is removed, and is in no class")
    names = classes.get_by_label("People, by name, or a roster")
    names.fill("ada")
    classes.get_by_role("button", name="Add").click()
    expect(classes.get_by_role("alert")).to_contain_text("ada is an admin here")
    names.fill("grace")
    agree(page, "Add", "Add 1 person?Each gets a token: grace")
    expect(classes.get_by_role("alert")).to_contain_text("grace is known here already")
    names.fill("emmy, lise")
    agree(page, "Add", "Add 2 people?Each gets a token: emmy, lise")
    tokens = dict(line.split() for line in classes.locator("code").inner_text().splitlines())
    check(page, "endless")
    assert tokens.keys() == {"emmy", "lise"}
    expect(page.get_by_role("row", name="emmy")).to_be_visible()
    expect(classes.get_by_label("Until")).to_be_visible()
    emmy = Client(stack.gateway_url, tokens["emmy"])
    assert apart(emmy.request("GET", "/sharedkernel/api/quotas")).body["users"].keys() == {"emmy"}
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_text("add people · users: emmy; lise")).to_be_visible()
    TokenFile(stack.directory / "tokens.json").remove(*tokens)
