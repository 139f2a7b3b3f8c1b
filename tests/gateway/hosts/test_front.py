"""A front: it routes requests by kernel ids, joins websockets, places sessions, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tornado.httpclient import HTTPClientError

from sharedkernel.gateway.auth.tickets import host_prefix
from tests.gateway.client import Answer, Client
from tests.gateway.conftest import Stack, run, wait_for
from tests.gateway.devices import until
from tests.gateway.hosts.conftest import HOSTS, Cluster
from tests.gateway.test_stock_clients import stock_server, use_as_any_gateway

pytestmark = pytest.mark.heavy

STATUS = "/sharedkernel/api/status"


def host_of(kernel: str) -> str:
    return next(name for name in HOSTS if kernel.startswith(host_prefix(name)))


async def execute(client: Client, kernel: str, code: str) -> str:
    """Run a cell, and return what it printed, once the websocket is closed: the loop may end next."""
    async with client.attach(kernel) as channels:
        reply = await channels.run(code)
        channels.socket.close()
        while await channels.receive() is not None:
            pass
    assert reply["status"] == "ok", reply
    return str(reply["text"]).strip()


async def start_on_both(client: Client) -> dict[str, str]:
    """Start a session on each host; return the ids by host."""
    kernels: dict[str, str] = {}
    while len(kernels) < len(HOSTS):
        kernel = await client.start()
        if kernels.setdefault(host_of(kernel), kernel) != kernel:
            await client.end(kernel)
    return kernels


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
    interrupted = await other.request("POST", f"/api/kernels/{kernels['h2']}/interrupt")
    assert interrupted.status == 204, interrupted
    for kernel in kernels.values():
        await other.end(kernel)
    assert (await grace.request("GET", "/api/kernels")).body == []


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


async def test_a_front_has_no_class(cluster: Cluster) -> None:
    """It says so, instead of having one that no host knows."""
    for method in ("GET", "PUT", "DELETE"):
        body = {"users": ["maria"]} if method == "PUT" else None
        refused = await cluster.client("ada").request(method, "/sharedkernel/api/class", body)
        assert (refused.status, refused.body["reason"]) == (403, "not_allowed")
        assert refused.body["message"] == "a front of a cluster has no classes; each host has its own."


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
    """At the front that started it, and at another one, which asks the hosts."""
    grace, other = cluster.client("grace"), cluster.client("grace", front=1)
    first = await grace.start(KERNEL_CLIENT_KEY="key")
    assert await grace.start(KERNEL_CLIENT_KEY="key") == first

    async def is_known() -> bool:
        hosts = (await cluster.client("ada", front=1).request("GET", "/sharedkernel/api/hosts")).body["hosts"]
        # On that host: what tests before have had elsewhere may still be counted.
        return any("grace" in host["users"] for host in hosts if host["name"] == host_of(first))

    await until(is_known)
    assert await other.start(KERNEL_CLIENT_KEY="key") == first


async def test_a_client_that_asks_twice_at_once_gets_one_session(cluster: Cluster) -> None:
    """Wherever it is placed; the same for a notebook that two tabs open."""
    grace = cluster.client("grace")
    assert len(set(await asyncio.gather(*(grace.start(KERNEL_CLIENT_KEY="key") for _ in range(4))))) == 1
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


def test_a_killed_front_costs_nothing(cluster: Cluster) -> None:
    """A cell runs on, its output comes through the other front, and the killed one finds the session again."""

    async def start() -> str:
        grace = cluster.client("grace")
        kernel = await grace.start()
        async with grace.attach(kernel) as channels:
            await channels.run("x = 41")
            await channels.send("execute_request", {"code": "import time; time.sleep(1); x += 1", "silent": False})
            await channels.until("execute_input")
            cluster.fronts[0].kill()
            while await channels.receive() is not None:
                pass
        assert await execute(cluster.client("grace", front=1), kernel, "print(x)") == "42"
        return kernel

    kernel = asyncio.run(start())
    cluster.fronts[0].start()
    cluster.fronts[0].wait_until_ready()
    wait_for(cluster.is_whole)
    assert asyncio.run(execute(cluster.client("grace"), kernel, "print(x + 1)")) == "43"


def test_a_host_that_is_away_is_not_forgotten(cluster: Cluster) -> None:
    """Its sessions get a sentence, others go on; once it is back, so are its sessions; only an admin forgets a host."""

    async def start() -> dict[str, str]:
        return await start_on_both(cluster.client("grace"))

    kernels = asyncio.run(start())
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()
    wait_for(lambda: cluster.answering() == {"h1"})

    async def away() -> None:
        grace, ada = cluster.client("grace"), cluster.client("ada")
        answer = await grace.request("GET", f"/api/kernels/{kernels['h2']}")
        assert answer.status == 503
        assert answer.body["reason"] == "host_away"
        assert "h2 has not answered for" in answer.body["message"]
        assert (await grace.request("GET", "/api/kernels")).status == 503, "an incomplete list was shown"
        assert await execute(grace, kernels["h1"], "print(1)") == "1"
        devices = {entry["name"]: entry for entry in (await grace.request("GET", STATUS)).body["devices"]}
        assert devices["h1/host"]["available"]
        assert not devices["h2"]["available"]
        assert "not lost" in devices["h2"]["message"]
        assert (await grace.request("DELETE", "/sharedkernel/api/hosts/h2")).status == 403
        assert (await ada.request("DELETE", "/sharedkernel/api/hosts/h1")).status == 409
        assert (await ada.request("DELETE", "/sharedkernel/api/hosts/h2")).status == 204
        assert (await grace.request("GET", f"/api/kernels/{kernels['h2']}")).status == 404

    asyncio.run(away())
    gateway.start()
    wait_for(cluster.is_whole)
    assert asyncio.run(execute(cluster.client("grace"), kernels["h2"], "print(2)")) == "2"


def test_an_earlier_session_on_a_host_that_is_away_is_named(cluster: Cluster) -> None:
    """Its own client is refused, and gets no second session; a new session says it, and so does `%shared attach`."""

    async def start() -> dict[str, str]:
        grace, keys = cluster.client("grace"), {}
        while len(keys) < len(HOSTS):
            key = f"key{len(keys)}"
            kernel = await grace.start(KERNEL_CLIENT_KEY=key)
            if keys.setdefault(host_of(kernel), key) != key:
                await grace.end(kernel)
        return keys

    keys = asyncio.run(start())
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()

    async def ask(key: str) -> Answer:
        body = {"name": "shared-gpu", "env": {"KERNEL_CLIENT_KEY": key}}
        return await asyncio.wait_for(cluster.client("grace").request("POST", "/api/kernels", body), 10)

    refused = asyncio.run(ask(keys["h2"]))
    assert (refused.status, refused.body["reason"]) == (503, "host_away")
    wait_for(lambda: cluster.answering() == {"h1"})
    refused = asyncio.run(ask(keys["h2"]))
    assert (refused.status, refused.body["reason"]) == (503, "host_away")
    assert "the session of this notebook is on another machine: h2 has not answered for" in refused.body["message"]
    assert asyncio.run(ask(keys["h1"])).status == 201

    async def new() -> str:
        grace = cluster.client("grace")
        kernel = await grace.start(KERNEL_NOTEBOOK="other.ipynb")
        async with grace.attach(kernel) as channels:
            first = (await channels.run("1 + 1"))["text"]
            asked = (await channels.run("%shared attach"))["text"]
        return f"{first}|{asked}"

    sentence = "An earlier session of this notebook may be on another machine: h2 has not answered for"
    assert asyncio.run(new()).count(sentence) == 2
    gateway.start()
    wait_for(cluster.is_whole)


def test_sessions_that_a_host_did_not_start_are_not_counted_there(cluster: Cluster) -> None:
    """Neither towards the limit, nor as something that lists would lack while it is away."""
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()

    async def start() -> set[str]:
        linus = cluster.client("linus")
        return {await linus.start(), await linus.start()}

    async def listed() -> set[str]:
        answer = await cluster.client("linus").request("GET", "/api/kernels")
        assert answer.status == 200, answer
        return {entry["id"] for entry in answer.body}

    kernels = asyncio.run(start())
    assert {host_of(kernel) for kernel in kernels} == {"h1"}
    wait_for(lambda: cluster.answering() == {"h1"})
    assert asyncio.run(listed()) == kernels


async def test_a_revoked_user_s_websocket_is_closed(cluster: Cluster) -> None:
    """By the front, which checks tokens while websockets are open."""
    from sharedkernel.gateway.auth.tokens import TokenFile

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
    cordon = {"cordoned": True}
    path = "/sharedkernel/api/hosts/h2"

    async def hosts(front: int) -> dict[str, Any]:
        answer = await cluster.client("ada", front).request("GET", "/sharedkernel/api/hosts")
        return {host["name"]: host for host in answer.body["hosts"]}

    async def test() -> str:
        grace, ada = cluster.client("grace"), cluster.client("ada")
        kernels = await start_on_both(grace)
        assert (await grace.request("PUT", path, cordon)).status == 403
        assert (await ada.request("PUT", path, {"cordoned": 1})).status == 400
        assert (await ada.request("PUT", "/sharedkernel/api/hosts/h9", cordon)).status == 404
        assert not (await hosts(0))["h2"]["cordoned"]
        assert (await ada.request("PUT", path, cordon)).status == 204
        await until(lambda: _both(hosts, "cordoned"))
        for front in (0, 1):
            for _ in range(3):
                kernel = await cluster.client("grace", front).start()
                assert host_of(kernel) == "h1"
        assert await execute(grace, kernels["h2"], "print(1)") == "1"
        assert (await hosts(0))["h2"]["users"] == {
            "grace": {"sessions": 1, "has_left": False, "lingers": False, "has_shelf": False}
        }
        return kernels["h2"]

    kernel = asyncio.run(test())
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()
    gateway.start()
    gateway.wait_until_ready()
    wait_for(cluster.is_whole)

    async def end() -> None:
        grace, ada = cluster.client("grace"), cluster.client("ada")
        answer = await cluster.hosts["h2"].client("ada").request("POST", "/api/kernels", {"name": "shared-gpu"})
        assert answer.status == 409, "a host must refuse what a front sends that does not know yet"
        assert "being drained" in answer.body["message"]
        assert not (await hosts(0))["h2"]["drained"]
        assert (await grace.request("DELETE", f"/api/kernels/{kernel}?linger=0")).status == 204
        await until(lambda: _both(hosts, "drained"))
        assert (await ada.request("PUT", path, {"cordoned": False})).status == 204
        assert host_of(await grace.start()) == "h2", "the emptier one"

    asyncio.run(end())


async def _both(hosts: Callable[[int], Awaitable[dict[str, Any]]], what: str) -> bool:
    return all([(await hosts(front))["h2"][what] for front in (0, 1)])


async def test_a_websocket_that_its_host_refuses_is_refused_with_its_reason(cluster: Cluster) -> None:
    """Not left open."""
    unknown = host_prefix("h1") + "-1111-4111-8111-111111111111"
    with pytest.raises(HTTPClientError) as refused:
        await cluster.client("grace").attach(unknown).open()
    assert refused.value.code == 404
    assert refused.value.response is not None
    assert b"404" in refused.value.response.body
