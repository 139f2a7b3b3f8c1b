"""Users' shelves over the gateway: who may see and empty which, what is written down of it, and who is away."""

from __future__ import annotations

from urllib.parse import quote

from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import DEVICES, execute, start_on_each, until
from tests.gateway.http.test_operations import audit

SHELVES = "/sharedkernel/api/shelves"
IMPORT = "import torch; from sharedkernel import shelf; "


async def names(client: Client, path: str = SHELVES) -> dict[str, list[str]]:
    """Return the names on each user's shelf."""
    answer = await client.request("GET", path)
    assert (answer.status, answer.body["away"]) == (200, {})
    return {shelf["user"]: [entry["name"] for entry in shelf["entries"]] for shelf in answer.body["shelves"]}


async def test_a_user_sees_and_empties_an_own_shelf_and_an_admin_everybodys(stack: Stack) -> None:
    """Names may be any text; others' shelves are refused, whether there is anything on them or not.

    Each name that is taken off is written down: by whom, whose it was, how large; and what was refused.
    """
    strange, seen = "a/b ?.. %00 ä", len(audit(stack))
    ada, grace, mary = stack.client("ada"), stack.client("grace"), stack.client("mary")
    kernel, other = await grace.start(), await mary.start()
    await execute(grace, kernel, IMPORT + f"shelf['model'] = torch.ones(3); shelf[{strange!r}] = torch.ones(1500)")
    await execute(mary, other, IMPORT + "shelf['model'] = torch.zeros(5)")
    assert await names(grace) == await names(grace, f"{SHELVES}/grace") == {"grace": sorted(["model", strange])}
    everybodys = {"grace": sorted(["model", strange]), "mary": ["model"]}
    assert await names(ada) == everybodys
    for method in ("GET", "DELETE"):
        for path in ("grace", "nobody"):
            answer = await mary.request(method, f"{SHELVES}/{path}")
            assert (answer.status, answer.body["reason"]) == (403, "not_admin")
    assert (await mary.request("DELETE", f"{SHELVES}/grace/model")).status == 403
    assert (await Client(stack.gateway_url, "").request("GET", SHELVES)).status == 403
    assert (await ada.request("GET", f"{SHELVES}/grace/model")).status == 405
    assert await names(ada) == everybodys
    answer = await grace.request("DELETE", f"{SHELVES}/grace/{quote(strange, safe='')}")
    assert (answer.status, [entry["name"] for entry in answer.body["removed"]]) == (200, [strange])
    assert await names(ada) == {"grace": ["model"], "mary": ["model"]}
    await grace.end(kernel)
    answer = await ada.request("DELETE", f"{SHELVES}/grace")
    assert [(entry["name"], entry["device"]) for entry in answer.body["removed"]] == [("model", None)]
    assert await names(ada) == {"mary": ["model"]}
    assert await execute(mary, other, "print(shelf['model'].tolist())") == str([0.0] * 5)
    assert (await ada.request("DELETE", f"{SHELVES}/mary")).status == 200
    assert await names(ada, f"{SHELVES}/mary") == {}
    for path, status, sentence in (
        ("grace/gone", 404, "there is no 'gone' on the shelf of 'grace'."),
        ("nobody", 404, "there is nothing on the shelf of 'nobody'."),
        ("grace?device=host", 400, "there is no device 'host' here; name none, since there is only one."),
    ):
        answer = await ada.request("DELETE", f"{SHELVES}/{path}")
        assert (answer.status, answer.body["message"]) == (status, sentence)
    assert (await ada.request("DELETE", f"{SHELVES}/grace/%FF")).status == 400
    entries = [entry for entry in audit(stack)[seen:] if entry["action"] == "take off shelf"]
    told = [(entry["user"], entry["owner"], entry["name"], entry.get("bytes"), entry["status"]) for entry in entries]
    assert told == [
        ("mary", "grace", None, None, 403),
        ("mary", "nobody", None, None, 403),
        ("mary", "grace", "model", None, 403),
        ("grace", "grace", strange, 8192, 200),
        ("ada", "grace", "model", 4096, 200),
        ("ada", "mary", "model", 4096, 200),
        ("ada", "grace", "gone", None, 404),
        ("ada", "nobody", None, None, 404),
        ("ada", "grace", None, None, 400),
    ]
    assert all(entry["session"] is None and entry["address"] == "127.0.0.1" for entry in entries)


async def test_each_device_has_shelves_of_its_own(devices: Stack) -> None:
    """One is emptied on all or on one; while one is away the other's is there, and nothing is taken off by halves.

    Where all are away nothing can be seen; afterwards everything is there.
    """

    async def shelves(client: Client) -> tuple[dict[str, list[str]], dict[str, str]]:
        body = (await client.request("GET", SHELVES)).body
        found = {shelf["device"]: [entry["name"] for entry in shelf["entries"]] for shelf in body["shelves"]}
        return found, body["away"]

    ada, grace = devices.client("ada"), devices.client("grace")
    for device, kernel in (await start_on_each(devices, grace)).items():
        await execute(grace, kernel, IMPORT + f"shelf['both'] = shelf['two'] = shelf[{device!r}] = torch.ones(1)")
    assert await shelves(grace) == ({device: sorted(["both", "two", device]) for device in DEVICES}, {})
    answer = await ada.request("DELETE", f"{SHELVES}/grace/both")
    assert [entry["device"] for entry in answer.body["removed"]] == DEVICES
    answer = await grace.request("DELETE", f"{SHELVES}/grace/host:1")
    assert [entry["device"] for entry in answer.body["removed"]] == ["host:1"]
    assert await shelves(grace) == ({"host": ["host", "two"], "host:1": ["two"]}, {})
    devices.executors["host:1"].kill()

    async def is_away() -> bool:
        return "no executor answers" in (await shelves(ada))[1].get("host:1", "")

    await until(is_away)
    answer = await ada.request("DELETE", f"{SHELVES}/grace")
    assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
    assert answer.body["message"].startswith("nothing was taken off (`device` names one of several to do it there)")
    assert (await shelves(ada))[0] == {"host": ["host", "two"]}
    answer = await ada.request("DELETE", f"{SHELVES}/grace?device=host")
    assert sorted(entry["name"] for entry in answer.body["removed"]) == ["host", "two"]
    devices.executors["host"].kill()

    async def are_both_away() -> bool:
        answer = await grace.request("GET", SHELVES)
        return answer.status == 503 and "no executor answers" in answer.body["message"]

    await until(are_both_away)
    for device in DEVICES:
        devices.executors[device].start()

    async def are_back() -> bool:
        answer = await ada.request("GET", SHELVES)
        return answer.status == 200 and await shelves(ada) == ({"host:1": ["two"]}, {})

    await until(are_back)
    assert (await ada.request("DELETE", f"{SHELVES}/grace")).status == 200
    assert await shelves(ada) == ({}, {})
