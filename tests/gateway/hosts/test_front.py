"""A front: it routes requests by kernel ids, joins websockets, places sessions, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tornado.httpclient import HTTPClientError

from sharedkernel.gateway.auth.tickets import host_prefix
from sharedkernel.gateway.auth.tokens import TokenFile
from tests.fuzz.conftest import execute
from tests.gateway.client import Answer, Client
from tests.gateway.conftest import Stack, run, wait_for
from tests.gateway.devices import until
from tests.gateway.hosts.conftest import HOSTS, Cluster
from tests.gateway.test_stock_clients import stock_server, use_as_any_gateway

pytestmark = pytest.mark.heavy

STATUS = "/sharedkernel/api/status"


def host_of(kernel: str) -> str:
    return next(name for name in HOSTS if kernel.startswith(host_prefix(name)))


async def start_on_both(client: Client) -> dict[str, str]:
    """Start a session on each host; return the ids by host."""
    kernels: dict[str, str] = {}
    while len(kernels) < len(HOSTS):
        kernel = await client.start()
        if kernels.setdefault(host_of(kernel), kernel) != kernel:
            await client.end(kernel)
    return kernels


async def start_on_h2(client: Client) -> str:
    kernels = await start_on_both(client)
    await client.end(kernels["h1"])
    return kernels["h2"]


async def wait_for_left(cluster: Cluster, user: str, sessions: int) -> None:
    """Wait until the front knows that a user has a shelf on h2, and as many sessions."""
    expected = {user: {"sessions": sessions, "has_left": True, "lingers": False, "has_shelf": True}}

    async def is_known() -> bool:
        return bool((await cluster.known())["h2"]["users"] == expected)

    await until(is_known)


async def test_sessions_are_on_all_hosts_and_every_front_knows_them(cluster: Cluster) -> None:
    """Started, used, listed, shown in the status and ended, through either front, by their users alone."""
    grace = cluster.client("grace")
    kernels = await start_on_both(grace)
    for number, kernel in enumerate(kernels.values()):
        assert await execute(grace, kernel, f"import torch; x = torch.tensor({number}); print(int(x))") == f"{number}"
    other = cluster.client("grace", front=1)
    for number, kernel in enumerate(kernels.values()):
        assert await execute(other, kernel, "print(int(x) + 1)") == f"{number + 1}"
    listed = (await other.request("GET", "/api/kernels")).body
    assert {entry["id"] for entry in listed} == set(kernels.values())

    linus = cluster.client("linus")
    assert (await linus.request("GET", "/api/kernels")).body == []
    assert (await linus.request("GET", f"/api/kernels/{kernels['h1']}")).status == 404
    assert (await Client(grace.url, "wrong").request("GET", f"/api/kernels/{kernels['h1']}")).status == 403
    with pytest.raises(HTTPClientError) as refused:  # with the host's own reason
        await grace.attach(host_prefix("h1") + "-1111-4111-8111-111111111111").open()
    assert (refused.value.code, b"404" in cast("Any", refused.value.response).body) == (404, True)

    async def is_unknown() -> bool:  # once the front is sure that all its hosts have registered
        return (await grace.request("GET", "/api/kernels/00000000-0000-0000-0000-000000000000")).status == 404

    await until(is_unknown)

    status = (await grace.request("GET", STATUS)).body
    assert {entry["host"] for entry in status["devices"]} == set(HOSTS)
    assert {(entry["name"], entry["answering"]) for entry in status["hosts"]} == {(name, True) for name in HOSTS}
    places = {entry["kernel_id"]: (entry["host"], entry["device"]) for entry in status["sessions"]}
    timelines = (await grace.request("GET", "/sharedkernel/api/timeline?seconds=3600")).body["devices"]
    ran = {(entry["device"], row["session"]) for entry in timelines for row in entry["rows"]}
    assert set(kernels.items()) <= ran

    async def have_histories() -> bool:
        history = (await grace.request("GET", "/sharedkernel/api/history")).body
        return [entry["name"] for entry in history["devices"] if entry["used_bytes"]] == [
            f"{host}/host" for host in HOSTS
        ]

    await until(have_histories)
    audited = (await cluster.client("ada").request("GET", "/sharedkernel/api/audit?user=grace")).body["entries"]
    started = {(entry["host"], entry["session"]) for entry in audited if entry["action"] == "start session"}
    assert set(kernels.items()) <= started
    assert (await grace.request("GET", "/sharedkernel/api/audit")).status == 403
    assert [entry["time"] for entry in audited] == sorted((entry["time"] for entry in audited), reverse=True)
    for host, kernel in kernels.items():
        assert places[kernel] == (host, f"{host}/host")
    for kernel in kernels.values():
        await other.end(kernel)
    assert (await grace.request("GET", "/api/kernels")).body == []
    for method, body in (("GET", None), ("PUT", {"users": ["maria"]}), ("DELETE", None)):
        answer = await cluster.client("ada").request(method, "/sharedkernel/api/class", body)
        assert (answer.status, "a front of a cluster has no classes" in answer.body["message"]) == (403, True)


async def test_users_have_one_colour_on_all_hosts(cluster: Cluster) -> None:
    """Whichever host they came to first, and through whichever front; nobody else has it."""

    async def colours(client: Client) -> dict[str, str]:
        return {user["name"]: user["colour"] for user in (await client.request("GET", STATUS)).body["users"]}

    for number, user in enumerate(("linus", "grace", "ada")):
        client = cluster.client(user, front=number % 2)
        await (start_on_both(client) if number else client.start())
        for front in range(2):
            found = await colours(cluster.client("ada", front))
            assert user in found
    assert len(set(found.values())) == len(found)
    for host in cluster.hosts.values():
        assert found | await colours(host.client("ada")) == found


async def test_a_waiting_cell_names_the_host_whose_device_it_waits_for(cluster: Cluster) -> None:
    """Its notebook may be on any of them; what its client claims about that is not believed."""

    async def start_two_on_one(client: Client) -> tuple[str, str, str]:
        kernels: dict[str, str] = {}
        while True:
            kernel = await client.start(KERNEL_SHAREDKERNEL_HOST="elsewhere")
            if (other := kernels.setdefault(host_of(kernel), kernel)) != kernel:
                return host_of(kernel), other, kernel

    grace = cluster.client("grace")
    host, first, second = await start_two_on_one(grace)
    async with grace.attach(first) as holder, grace.attach(second) as waiter:
        much = "import torch; x = torch.ones(80 * 2**20)"
        await holder.send("execute_request", {"code": f"{much}; print('has it'); import time; time.sleep(600)"})
        await holder.until("stream")
        cell = await waiter.send("execute_request", {"code": much})
        line = (await waiter.until("display_data", cell))[-1]["content"]["data"]["text/plain"]
        assert line.startswith(f"⏳ Waiting on {host}: device memory is full"), line
        for kernel in (second, first):
            await grace.request("POST", f"/api/kernels/{kernel}/interrupt")
        await waiter.until("execute_reply", cell, status="error")


async def test_requests_at_the_same_moment_do_not_exceed_the_limit(cluster: Cluster) -> None:
    """Also where others have just ended, which the hosts' summaries still count."""
    linus = cluster.client("linus")
    for _ in range(3):
        asked = [linus.request("POST", "/api/kernels", {"name": "shared-gpu"}) for _ in range(5)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status for answer in answers) == [201, 201, 429, 429, 429]
        assert {answer.body["reason"] for answer in answers if answer.status == 429} == {"quota"}
        await asyncio.gather(*(linus.end(answer.body["id"]) for answer in answers if answer.status == 201))
    await linus.end(await linus.start(KERNEL_CLIENT_KEY="key"))
    await linus.start()
    await linus.start()
    again = {"name": "shared-gpu", "env": {"KERNEL_CLIENT_KEY": "key"}}
    assert (await linus.request("POST", "/api/kernels", again)).status == 429, "its session has ended"


async def test_a_client_that_asks_again_gets_its_session(cluster: Cluster) -> None:
    """At the front that started it, and at another one, which asks the hosts; also if it, or two tabs, ask at once."""
    grace, other = cluster.client("grace"), cluster.client("grace", front=1)
    (first,) = set(await asyncio.gather(*(grace.start(KERNEL_CLIENT_KEY="key") for _ in range(4))))
    assert await grace.start(KERNEL_CLIENT_KEY="key") == first

    async def is_known() -> bool:
        # On that host: what tests before have had elsewhere may still be counted.
        return "grace" in (await cluster.known(front=1))[host_of(first)]["users"]

    await until(is_known)
    assert await other.start(KERNEL_CLIENT_KEY="key") == first
    body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "shared-gpu"}}
    made = await asyncio.gather(*(grace.request("POST", "/api/sessions", body) for _ in range(4)))
    assert {answer.status for answer in made} == {201}
    assert len({answer.body["id"] for answer in made}) == 1
    listed = (await grace.request("GET", "/api/sessions")).body
    assert [entry["id"] for entry in listed] == [made[0].body["id"]]
    assert len((await grace.request("GET", "/api/kernels")).body) == 2
    assert (await grace.request("DELETE", f"/api/sessions/{made[0].body['id']}")).status == 204


def test_a_stock_server_uses_a_front_as_any_gateway(cluster: Cluster, tmp_path: Path) -> None:
    """Kernelspecs, start, cells, interrupt, restart, list and shutdown go through."""
    with stock_server(cast("Stack", cluster), tmp_path) as server:
        run(use_as_any_gateway(server))


def test_a_host_that_is_away_is_not_forgotten(cluster: Cluster) -> None:
    """What is there gets a sentence, the rest goes on; it is back with its host, which only an admin can forget."""
    ada, grace, linus = map(cluster.client, ("ada", "grace", "linus"))

    async def begin() -> dict[str, tuple[str, str]]:
        shelved, sessions = await start_on_h2(linus), dict[str, tuple[str, str]]()
        await execute(linus, shelved, "import torch; from sharedkernel import shelf; shelf['model'] = torch.ones(3)")
        await linus.end(shelved)
        await wait_for_left(cluster, "linus", 0)
        while len(sessions) < len(HOSTS):
            key = f"key{len(sessions)}"
            kernel = await grace.start(KERNEL_CLIENT_KEY=key)
            if sessions.setdefault(host_of(kernel), (kernel, key))[0] != kernel:
                await grace.end(kernel)
        return sessions

    sessions = asyncio.run(begin())
    (here, here_key), (there, there_key) = sessions["h1"], sessions["h2"]
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()

    async def ask(key: str) -> Answer:
        body = {"name": "shared-gpu", "env": {"KERNEL_CLIENT_KEY": key}}
        return await asyncio.wait_for(grace.request("POST", "/api/kernels", body), 10)

    async def before_it_is_noticed() -> set[str]:
        refused = await ask(there_key)
        assert (refused.status, refused.body["reason"]) == (503, "host_away")
        return {await linus.start(), await linus.start()}

    started = asyncio.run(before_it_is_noticed())
    assert {host_of(kernel) for kernel in started} == {"h1"}
    wait_for(lambda: cluster.answering() == {"h1"})

    async def its_sessions_are_away() -> None:
        answer = await grace.request("GET", f"/api/kernels/{there}")
        assert (answer.status, answer.body["reason"]) == (503, "host_away")
        assert "h2 has not answered for" in answer.body["message"]
        assert (await grace.request("GET", "/api/kernels")).status == 503, "an incomplete list was shown"
        assert await execute(grace, here, "print(1)") == "1"
        devices = {entry["name"]: entry for entry in (await grace.request("GET", STATUS)).body["devices"]}
        assert devices["h1/host"]["available"]
        assert not devices["h2"]["available"]
        assert "not lost" in devices["h2"]["message"]
        refused = await ask(there_key)
        assert (refused.status, refused.body["reason"]) == (503, "host_away")
        assert "the session of this notebook is on another machine: h2 has not answered" in refused.body["message"]
        assert (await ask(here_key)).status == 201
        other = await grace.start(KERNEL_NOTEBOOK="other.ipynb")
        sentence = "An earlier session of this notebook may be on another machine: h2 has not answered for"
        for cell in ("1 + 1", "%shared attach"):
            assert sentence in await execute(grace, other, cell)

    async def of_a_shelf_it_is_said() -> None:
        listed = await linus.request("GET", "/api/kernels")
        assert (listed.status, {entry["id"] for entry in listed.body}) == (200, started), "they were counted at h2"
        await linus.end(started.pop())
        said = await execute(linus, await linus.start(), "print(1)")
        assert "Your shelf is on h2, which does not answer now; it stays there." in said
        assert "An earlier session" not in said

    async def an_admin_forgets_it() -> None:
        assert (await grace.request("DELETE", "/sharedkernel/api/hosts/h2")).status == 403
        assert (await ada.request("DELETE", "/sharedkernel/api/hosts/h1")).status == 409
        assert (await ada.request("DELETE", "/sharedkernel/api/hosts/h2")).status == 204
        assert (await grace.request("GET", f"/api/kernels/{there}")).status == 404

    for step in (its_sessions_are_away, of_a_shelf_it_is_said, an_admin_forgets_it):
        asyncio.run(step())
    gateway.start()
    wait_for(cluster.is_whole)
    assert asyncio.run(execute(grace, there, "print(2)")) == "2"


async def test_a_revoked_user_s_websocket_is_closed(cluster: Cluster) -> None:
    """By the front, which checks tokens while websockets are open."""
    tokens = TokenFile(cluster.directory / "tokens.json")
    cluster.tokens["mary"] = tokens.add("mary")
    mary = cluster.client("mary")
    kernel = await mary.start()
    async with mary.attach(kernel) as channels:
        await channels.run("pass")
        tokens.remove("mary")
        while await channels.receive() is not None:
            pass
    assert (await mary.request("GET", "/api/kernels")).status == 403


def test_a_cordoned_host_gets_no_sessions_and_loses_none(cluster: Cluster) -> None:
    """Both fronts skip it, also after its gateway was killed; its notebooks go on; only an admin may do that."""
    ada, grace = cluster.client("ada"), cluster.client("grace")
    cordon, path = {"cordoned": True}, "/sharedkernel/api/hosts/h2"

    async def both_know(what: str) -> None:
        async def is_known() -> bool:
            return all([(await cluster.known(front))["h2"][what] for front in (0, 1)])

        await until(is_known)

    async def test() -> str:
        kernels = await start_on_both(grace)
        assert (await grace.request("PUT", path, cordon)).status == 403
        assert (await ada.request("PUT", path, {"cordoned": 1})).status == 400
        assert (await ada.request("PUT", "/sharedkernel/api/hosts/h9", cordon)).status == 404
        assert not (await cluster.known())["h2"]["cordoned"]
        assert (await ada.request("PUT", path, cordon)).status == 204
        await both_know("cordoned")
        for front in (0, 1):
            for _ in range(3):
                kernel = await cluster.client("grace", front).start()
                assert host_of(kernel) == "h1"
        assert await execute(grace, kernels["h2"], "print(1)") == "1"
        assert (await cluster.known())["h2"]["users"] == {
            "grace": {"sessions": 1, "has_left": False, "lingers": False, "has_shelf": False}
        }
        return kernels["h2"]

    kernel = asyncio.run(test())
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()
    gateway.start()
    gateway.wait_until_ready()
    wait_for(lambda: cluster.answering(0) == cluster.answering(1) == set(HOSTS))

    async def end() -> None:
        answer = await cluster.hosts["h2"].client("ada").request("POST", "/api/kernels", {"name": "shared-gpu"})
        assert answer.status == 409, "a host must refuse what a front sends that does not know yet"
        assert "being drained" in answer.body["message"]
        assert not (await cluster.known())["h2"]["drained"]
        assert (await grace.request("DELETE", f"/api/kernels/{kernel}?linger=0")).status == 204
        await both_know("drained")
        assert (await ada.request("PUT", path, {"cordoned": False})).status == 204
        assert host_of(await grace.start()) == "h2", "the emptier one"

    asyncio.run(end())
