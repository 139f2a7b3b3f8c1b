"""Classes on a real gateway: from their beginning to their end, with real sessions, through restarts and a reload."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tornado.simple_httpclient import HTTPStreamClosedError

from sharedkernel.gateway.auth.tokens import TokenFile
from tests.gateway.classroom.conftest import CLASS, accept, after, begin, join
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.page.browser import FORM, Browser


def kept_classes(stack: Stack) -> Any:
    return json.loads((stack.directory / "sharedkernel_class.json").read_text())["classes"]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.02)


def send(stack: Stack, number: signal.Signals) -> None:
    """Send a signal to the executor."""
    assert stack.executor.process is not None
    stack.executor.process.send_signal(number)


async def quota(stack: Stack, user: str, key: str) -> tuple[Any, str]:
    users = (await stack.client("ada").request("GET", "/sharedkernel/api/quotas")).body["users"]
    entry = users.get(user, {}).get(key, {"value": None, "source": ""})
    return entry["value"], entry["source"]


async def quota_bytes(stack: Stack, user: str) -> int | None:
    """Return the quota that the executor enforces."""
    status = (await stack.client("ada").request("GET", "/sharedkernel/api/status")).body
    return next((entry["quota_bytes"] for entry in status["users"] if entry["name"] == user), None)


async def test_from_the_beginning_to_the_end(stack: Stack) -> None:
    """Its users work under its limits; its end tells and ends them, and touches nobody else."""
    codes = await begin(stack, "maria", "niels", memory="64MiB", sessions=1, share=2)
    assert await quota(stack, "maria", "memory") == ("64MiB", "class: group class")
    assert await quota(stack, "niels", "share") == (2.0, "class: group class")
    assert await quota_bytes(stack, "maria") == await quota_bytes(stack, "niels") == 64 << 20
    assert await quota(stack, "maria", "share") == (3.0, "config: user maria"), "the most specific one wins"
    maria = Client(stack.gateway_url, await join(stack, codes["maria"]))
    grace, ada = stack.client("grace"), stack.client("ada")
    async with grace.attach(await grace.start()) as other, maria.attach(await maria.start()) as own:
        assert (await other.run("x = 1"))["status"] == "ok"
        assert await quota(stack, "grace", "memory") == ("50%", "config: default")
        assert "may use 64.0 MiB" in (await own.run("import torch; torch.ones(1 << 26)"))["text"]
        assert (await own.run("torch.ones(4)"))["status"] == "ok"
        assert (await maria.request("POST", "/api/kernels", {"name": "shared-gpu"})).status == 429
        found = (await ada.request("GET", CLASS)).body["class"]
        assert found["users"]["maria"]["sessions"] == 1
        assert found["users"]["maria"]["joined"] is not None
        assert found["users"]["niels"] == {"joined": None, "invited": True, "sessions": 0}
        by_hand = {"users": {"niels": {"memory": "32MiB"}}}
        changed = await ada.request("PUT", "/sharedkernel/api/quotas", by_hand)
        assert changed.status == 200
        assert "notes" not in changed.body, "somebody who has not joined yet is no misspelt name"
        assert await quota(stack, "niels", "memory") == ("32MiB", "put: user niels")
        done = await ada.request("DELETE", CLASS)
        assert done.body["message"] == "The class is over; 1 session ended."
        told = await own.until("status", execution_state="dead")
        assert [m["content"]["text"] for m in told if m["type"] == "stream"] == [
            "This session was ended: the class is over.\n"
        ]
        assert told[-1]["content"]["message"] == "This session was ended: the class is over."
        assert (await maria.request("GET", "/api/kernels")).status == 403
        assert (await other.run("x + 1"))["text"] == "2"
    assert await quota(stack, "maria", "memory") == ("50%", "config: default")
    assert await quota_bytes(stack, "maria") == 1 << 30, "the executor enforces what held before"
    assert await quota(stack, "niels", "memory") == (None, "")
    assert await quota_bytes(stack, "niels") is None, "whom only the class named is in the status no more"
    assert kept_classes(stack) == {}
    assert {token.user for token in TokenFile(stack.directory / "tokens.json").tokens().values()} == set(stack.users)
    assert (await ada.request("GET", CLASS)).body == {"class": None, "classes": {}}
    entries = [json.loads(line) for line in (stack.runtime_directory / "audit.jsonl").read_text().splitlines()]
    actions = [entry["action"] for entry in entries]
    for action in ("begin class", "join class", "end class session", "class ended", "end class"):
        assert action in actions, action
    (began,) = [entry for entry in entries if entry["action"] == "begin class" and "maria" in entry["users"]][-1:]
    assert began["users"] == ["maria", "niels"]
    assert began["until"] > began["time"]


async def test_a_restart_and_a_reload_change_nothing(stack: Stack) -> None:
    """Limits, tokens and invitations hold; the executor enforces the limits of one who comes later."""
    codes = await begin(stack, "maria", "niels", memory="64MiB")
    maria = Client(stack.gateway_url, await join(stack, codes["maria"]))

    async def check_limits() -> None:
        assert await quota(stack, "maria", "memory") == ("64MiB", "class: group class")
        kernel = await maria.start()
        assert await quota_bytes(stack, "maria") == 64 << 20
        await maria.end(kernel)

    stack.reload(stack.config_path.read_text() + "\n")
    await check_limits()
    stack.gateway.kill()
    stack.restart_gateway()
    await check_limits()
    niels = Client(stack.gateway_url, await join(stack, codes["niels"]))
    assert (await niels.request("GET", "/api/kernels")).status == 200


@pytest.mark.heavy
async def test_the_clock_ends_a_class_while_the_gateway_is_away(stack: Stack) -> None:
    """Its sessions end when the gateway is back and has found them."""
    ada, codes = stack.client("ada"), await begin(stack, "maria")
    await Client(stack.gateway_url, await join(stack, codes["maria"])).start()
    assert (await ada.request("PATCH", CLASS, {"until": after(seconds=1)})).status == 200
    stack.gateway.kill()
    stack.restart_gateway()
    while (await ada.request("GET", CLASS)).body["class"] is not None:  # noqa: ASYNC110  # another process's
        await asyncio.sleep(0.05)
    assert (await ada.request("GET", "/api/kernels")).body == []
    assert kept_classes(stack) == {}


@pytest.mark.heavy
async def test_sessions_are_told_once_of_the_end(stack: Stack) -> None:
    """However often the gateway looks; again when the end moves."""
    codes = await begin(stack, "maria")
    maria, ada = Client(stack.gateway_url, await join(stack, codes["maria"])), stack.client("ada")
    async with maria.attach(await maria.start()) as notebook:
        await notebook.run("1")
        for minutes in (9, 8):
            assert (await ada.request("PATCH", CLASS, {"until": after(minutes=minutes)})).status == 200
            told = await notebook.until("stream", name="stderr")
            assert "This class ends at " in told[-1]["content"]["text"]
        assert (await ada.request("DELETE", CLASS)).status == 200
        rest = await notebook.until("status", execution_state="dead")
        assert [m["content"]["text"] for m in rest if m["type"] == "stream"] == [
            "This session was ended: the class is over.\n"
        ]


async def test_what_users_had_before_stays(stack: Stack) -> None:
    """Sessions, and all tokens but those that an invitation gave, and those that were made with these.

    The end can be moved for both; a page that was opened with one says why it is signed out.
    """
    linus, ada = stack.client("linus"), stack.client("ada")
    tokens = TokenFile(stack.directory / "tokens.json")
    browser, own = Browser(stack.gateway_url), Browser(stack.gateway_url)
    async with linus.attach(await linus.start()) as training:
        body = {"users": ["linus"], "limits": {}, "until": after(hours=1)}
        refused = await ada.request("PUT", CLASS, body)
        assert (refused.status, refused.body["reason"]) == (409, "known_users")
        assert "linus is a user here already" in refused.body["message"]
        codes = (await ada.request("PUT", CLASS, body | {"allow_known": True})).body["codes"]
        given = (await accept(browser, codes["linus"])).body["install_command"].rpartition(" ")[2]
        assert (await own.sign_in(linus.token)).status == 303
        made, other = [
            (await each.request("POST", "/sharedkernel/page/token")).body["token"] for each in (browser, own)
        ]
        moved = after(hours=3)
        assert (await ada.request("PATCH", CLASS, {"until": moved})).status == 200
        ends = [str(token.expires) for token in tokens.tokens().values() if token.user == "linus" and token.expires]
        assert ends == [f"{moved[:19]}+00:00".replace("T", " ")] * 2
        await Client(stack.gateway_url, given).start()
        assert (await ada.request("DELETE", CLASS)).body["message"] == "The class is over; 1 session ended."
        clients = [Client(stack.gateway_url, token) for token in (given, made, other, linus.token)]
        answers = [await client.request("GET", "/api/kernels") for client in clients]
        assert [answer.status for answer in answers] == [403, 403, 200, 200]
        assert len(answers[-1].body) == 1
        assert (await training.run("1 + 1"))["text"] == "2"
    assert (await browser.request("GET", "/sharedkernel/page/me")).status == 401
    assert "The class has ended, and your sign-in with it." in (await browser.request("GET", FORM)).body
    tokens.remove(other.rpartition("-")[0])


SHELVE = "import torch; from sharedkernel import shelf; shelf['model'] = torch.ones(4)"


async def shelves(stack: Stack) -> set[tuple[str, str]]:
    """Return what is on anybody's shelf, by user."""
    found = (await stack.client("ada").request("GET", "/sharedkernel/api/shelves")).body["shelves"]
    return {(shelf["user"], entry["name"]) for shelf in found for entry in shelf["entries"]}


async def shelve(client: Client) -> None:
    """Put something on a user's shelf, and end the session."""
    kernel = await client.start()
    async with client.attach(kernel) as notebook:
        assert (await notebook.run(SHELVE))["status"] == "ok"
    assert (await client.request("DELETE", f"/api/kernels/{kernel}?linger=0")).status == 204


async def test_what_new_users_have_on_their_shelves_goes_with_the_class(stack: Stack) -> None:
    """The next class may have others of these names; what somebody has who was here before stays.

    So who has left something is known: a newcomer of that name would find it.
    """
    ada, tokens = stack.client("ada"), TokenFile(stack.directory / "tokens.json")
    await shelve(Client(stack.gateway_url, tokens.add("pia")))
    tokens.remove("pia")
    body = {"users": ["niels", "linus", "pia"], "limits": {}, "until": after(hours=1)}
    refused = await ada.request("PUT", CLASS, body | {"users": ["niels", "pia"]})
    assert (refused.status, refused.body["reason"]) == (409, "known_users")
    codes = (await ada.request("PUT", CLASS, body | {"allow_known": True})).body["codes"]
    for user in ("niels", "linus"):
        await shelve(Client(stack.gateway_url, await join(stack, codes[user])))
    assert await shelves(stack) == {(user, "model") for user in ("niels", "linus", "pia")}
    assert (await ada.request("DELETE", CLASS)).status == 200
    assert await shelves(stack) == {("linus", "model"), ("pia", "model")}
    for user in ("linus", "pia"):
        assert (await ada.request("DELETE", f"/sharedkernel/api/shelves/{user}")).status == 200


@pytest.mark.heavy
async def test_shelves_on_an_executor_that_is_away_are_cleared_once_it_is_back(stack: Stack) -> None:
    """Until then the class is being ended, and nobody is let in: they might have left something there."""
    ada, tokens = stack.client("ada"), TokenFile(stack.directory / "tokens.json")
    codes = await begin(stack, "niels")
    await shelve(Client(stack.gateway_url, await join(stack, codes["niels"])))
    before = tokens.tokens()
    stack.executor.kill()
    try:
        refused = await ada.request("POST", "/sharedkernel/api/people", {"users": ["emmy"]})
        assert (refused.status, refused.body["reason"]) == (503, "executor_unavailable"), refused
        assert tokens.tokens() == before
        assert "Sessions and shelves on a device" in (await ada.request("DELETE", CLASS)).body["message"]
        assert (await ada.request("GET", CLASS)).body["class"]["ending"] is True
    finally:
        stack.executor.start()
    while (await ada.request("GET", CLASS)).body["class"] is not None:  # noqa: ASYNC110 (it is asked for)
        await asyncio.sleep(0.1)
    assert await shelves(stack) == set()


async def test_what_cannot_be_changes_nothing(stack: Stack) -> None:
    """Each refusal is a sentence."""
    ada = stack.client("ada")
    hour = after(hours=1)
    for body, status, sentence in [
        ({"users": ["ada"], "until": hour}, 400, "ada is an admin here"),
        ({"users": [], "until": hour}, 400, "a class has 1 to 500 users, not 0"),
        ({"users": ["m", "m"], "until": hour}, 400, "m is named twice"),
        ({"users": [f"u{n}" for n in range(501)], "until": hour}, 400, "not 501"),
        ({"users": ["../x"], "until": hour}, 400, "cannot be a user's name"),
        ({"users": "maria", "until": hour}, 400, "Expected `array`, got `str` - at `$.users`"),
        ({"users": ["m"], "until": after(hours=-1)}, 400, "has passed already"),
        ({"users": ["m"], "until": "0001-01-01T00:00:00+00:00"}, 400, "0001-01-01T00:00+00:00 has passed already"),
        ({"users": ["m"], "until": after(days=400)}, 400, "within 366 days"),
        ({"users": ["m"], "until": "18:00"}, 400, "Invalid RFC3339 encoded datetime - at `$.until`"),
        ({"users": ["m"], "until": hour, "limits": {"memory": "lots"}}, 400, "'lots' is not an amount of memory"),
        ({"users": ["m"], "until": hour, "limits": {"ram": 1}}, 400, "unknown key 'ram'"),
    ]:
        refused = await ada.request("PUT", CLASS, body)
        assert refused.status == status, refused
        assert sentence in refused.body["message"], refused
    for method in ("POST", "PATCH", "DELETE"):
        body = {"users": ["m"], "until": hour}
        assert (await ada.request(method, CLASS, None if method == "DELETE" else body)).status == 404
    for method in ("GET", "PUT", "DELETE"):
        refused = await stack.client("grace").request(method, CLASS, {} if method == "PUT" else None)
        assert (refused.status, refused.body["reason"]) == (403, "not_admin")
    assert (await ada.request("GET", CLASS)).body == {"class": None, "classes": {}}
    await begin(stack, "maria")
    refused = await ada.request("PUT", CLASS, {"users": ["m"], "until": hour})
    assert (refused.status, refused.body["reason"]) == (409, "class_exists")
    # limits that nobody has named; one in the request wins, also if it is none
    await begin(stack, "niels", group="evening", sessions=2, cull_after=None)
    for user, group, sessions, cull_after in (("maria", "class", 5, 3600.0), ("niels", "evening", 2, None)):
        assert await quota(stack, user, "sessions") == (sessions, f"class: group {group}")
        assert await quota(stack, user, "cull_after") == (cull_after, f"class: group {group}")


async def test_many_sessions_end_together(stack: Stack) -> None:
    """Those that are detached, too."""
    ada, names = stack.client("ada"), [f"student-{number}" for number in range(4)]
    codes = await begin(stack, *names, linger="10m")
    for number, name in enumerate(names):
        client = Client(stack.gateway_url, await join(stack, codes[name]))
        kernel = await client.start(KERNEL_NOTEBOOK=f"{number}.ipynb")
        async with client.attach(kernel) as notebook:
            await notebook.run("x = 1")
        if number % 2:
            await client.end(kernel)
    assert (await ada.request("DELETE", CLASS)).body["message"] == "The class is over; 4 sessions ended."
    assert (await ada.request("GET", "/sharedkernel/api/status")).body["sessions"] == []


async def test_an_end_goes_on_after_a_kill(stack: Stack) -> None:
    """Wherever it was: here tokens are removed, and an executor that hangs keeps a session and a shelf."""
    ada, tokens = stack.client("ada"), TokenFile(stack.directory / "tokens.json")
    codes = await begin(stack, "maria", "niels")
    for code in codes.values():
        student = Client(stack.gateway_url, await join(stack, code))
        async with student.attach(await student.start()) as notebook:
            assert (await notebook.run(SHELVE))["status"] == "ok"
    send(stack, signal.SIGSTOP)
    try:
        end = asyncio.create_task(ada.request("DELETE", CLASS))
        await until(lambda: tokens.in_group("class") == {})
        assert not end.done()
        stack.gateway.kill()
        with pytest.raises(HTTPStreamClosedError):
            await end
    finally:
        send(stack, signal.SIGCONT)
    stack.restart_gateway()
    await until(lambda: kept_classes(stack) == {})
    assert (await ada.request("GET", "/api/kernels")).body == []
    assert await shelves(stack) == set()
    assert await quota(stack, "maria", "sessions") == (64, "built in")


async def test_several_classes_end_each_by_itself(stack: Stack) -> None:
    """A request names the one that it means; nobody is in two."""
    ada = stack.client("ada")
    codes = [await begin(stack, user, group=group, memory=memory) for user, group, memory in (
        ("maria", "morning", "64MiB"), ("niels", "evening", "32MiB"),
    )]  # fmt: skip
    students = [Client(stack.gateway_url, await join(stack, *own.values())) for own in codes]
    for student in students:
        await student.start()
    assert await quota(stack, "maria", "memory") == ("64MiB", "class: group morning")
    changed = {"groups": {"evening": {"memory": "16MiB"}}}
    assert (await ada.request("PUT", "/sharedkernel/api/quotas", changed)).status == 200
    assert await quota(stack, "niels", "memory") == ("16MiB", "put: group evening")
    assert set((await ada.request("GET", CLASS)).body["classes"]) == {"morning", "evening"}
    assert (await ada.request("GET", f"{CLASS}?group=morning")).body["class"]["users"].keys() == {"maria"}
    unclear = await ada.request("DELETE", CLASS)
    assert (unclear.status, "morning, evening" in unclear.body["message"]) == (400, True)
    twice = await ada.request("POST", f"{CLASS}?group=morning", {"users": ["niels"], "allow_known": True})
    assert (twice.status, "as niels would be" in twice.body["message"]) == (400, True)
    assert (await ada.request("DELETE", f"{CLASS}?group=noon")).status == 404
    done = await ada.request("DELETE", f"{CLASS}?group=morning")
    assert done.body["message"] == "The class morning is over; 1 session ended."
    assert [(await student.request("GET", "/api/kernels")).status for student in students] == [403, 200]
    assert (await ada.request("DELETE", CLASS)).body["message"] == "The class evening is over; 1 session ended."
