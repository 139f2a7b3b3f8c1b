"""A shelf stays on its host: the next session starts there if it can, and its user is told where it cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.client import Client
from tests.gateway.conftest import run, wait_for
from tests.gateway.devices import until
from tests.gateway.hosts.conftest import HOSTS, Cluster
from tests.gateway.hosts.test_front import execute, host_of, start_on_both

pytestmark = pytest.mark.heavy

IMPORT = "import torch; from sharedkernel import shelf\n"
HOST = "/sharedkernel/api/hosts/h2"
SHELVES = "/sharedkernel/api/shelves"


async def h2(cluster: Cluster) -> Any:
    hosts = (await cluster.client("ada").request("GET", "/sharedkernel/api/hosts")).body["hosts"]
    return next(host for host in hosts if host["name"] == "h2")


async def command(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Return the exit code of ``sharedkernel cluster`` for ada, and what it printed."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sharedkernel", "cluster", *words],
        env=os.environ | cluster.client_environment("ada"),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


async def wait_for_left(cluster: Cluster, sessions: int) -> None:
    """Wait until the front knows that grace has a shelf on h2, and as many sessions."""
    expected = {"grace": {"sessions": sessions, "has_left": True, "lingers": False, "has_shelf": True}}

    async def is_known() -> bool:
        return bool((await h2(cluster))["users"] == expected)

    await until(is_known)


async def start_on_h2(client: Client) -> str:
    kernels = await start_on_both(client)
    await client.end(kernels["h1"])
    return kernels["h2"]


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; afterwards no host is cordoned and no shelf has anything."""
    yield cluster
    gateway = cluster.hosts["h2"].gateway
    if not gateway.running:
        gateway.start()
        gateway.wait_until_ready()
        wait_for(cluster.is_whole)
    run(cluster.client("ada").request("PUT", HOST, {"cordoned": False}))
    for host in cluster.hosts.values():
        run(host.client("ada").request("DELETE", "/sharedkernel/api/shelves/grace"))


async def test_shelves_of_all_hosts_are_listed_and_emptied_through_a_front(whole: Cluster) -> None:
    grace = whole.client("grace")
    kernels = await start_on_both(grace)
    for kernel in kernels.values():
        await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
    listed = (await grace.request("GET", SHELVES)).body
    assert (await grace.request("DELETE", SHELVES)).status == 405
    assert listed["away"] == {}
    found = [
        (shelf["user"], shelf["device"], [each["name"] for each in shelf["entries"]]) for shelf in listed["shelves"]
    ]
    assert found == [("grace", f"{host}/host", ["model"]) for host in HOSTS]
    linus = whole.client("linus")
    assert (await linus.request("GET", SHELVES)).body["shelves"] == []
    assert (await linus.request("DELETE", f"{SHELVES}/grace/model")).status == 403
    assert (await grace.request("DELETE", f"{SHELVES}/grace/model?device=h9/host")).status == 404
    for vague in ("", "h2", "h2/", "h2/cuda:0"):  # a variable that was not set, say: nothing is taken off
        answer = await grace.request("DELETE", f"{SHELVES}/grace/model?device={vague}")
        assert answer.status == 400, answer
    assert (await grace.request("GET", SHELVES)).body == listed

    async def devices(path: str) -> list[str]:
        answer = await grace.request("DELETE", f"{SHELVES}/grace{path}")
        assert answer.status == 200, answer
        return [entry["device"] for entry in answer.body["removed"]]

    assert await devices("/model?device=h2/host") == ["h2/host"]
    assert await devices("/model") == ["h1/host"]
    assert (await grace.request("DELETE", f"{SHELVES}/grace/model")).status == 404
    for kernel in kernels.values():
        await grace.end(kernel)


async def test_a_shelf_stays_on_a_host_that_is_drained(whole: Cluster) -> None:
    """The drain names who has one, and ends without them only if told so; afterwards it is there again."""
    grace = whole.client("grace")
    kernel = await start_on_h2(grace)
    await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
    await grace.end(kernel)
    await wait_for_left(whole, 0)
    again = await grace.start()
    assert host_of(again) == "h2", "where the shelf is, the next session starts"
    await grace.end(again)
    await wait_for_left(whole, 0)

    code, said = await command(whole, "drain", "h2", "--timeout", "0s")
    assert code == 1
    assert "grace: a shelf\n" in said
    elsewhere = await grace.start()
    assert host_of(elsewhere) == "h1"
    said = await execute(grace, elsewhere, IMPORT + "print(list(shelf))")
    assert "Your shelf is on h2, which is to be taken out of service (ask its admin); it stays there." in said
    assert said.endswith("[]")
    await grace.end(elsewhere)
    assert not (await h2(whole))["drained"]
    code, said = await command(whole, "drain", "h2", "--leave-shelves")
    assert (code, said.splitlines()[-1]) == (
        0,
        "h2 is drained: no user has a session there; shelves remain of grace.",
    )

    assert (await command(whole, "undrain", "h2"))[0] == 0
    back = await grace.start()
    assert host_of(back) == "h2"
    assert await execute(grace, back, IMPORT + "print(list(shelf))") == "['model']"


def test_a_session_says_where_the_shelf_is(whole: Cluster) -> None:
    """Also where the host of the shelf is away."""

    async def put_on_shelf() -> None:
        grace = whole.client("grace")
        kernel = await start_on_h2(grace)
        await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
        await grace.end(kernel)
        await wait_for_left(whole, 0)

    async def is_away() -> bool:
        return not (await h2(whole))["answering"]

    async def look() -> str:
        await until(is_away)
        grace = whole.client("grace")
        kernel = await grace.start()
        assert host_of(kernel) == "h1"
        return await execute(grace, kernel, "print(1)")

    run(put_on_shelf())
    whole.hosts["h2"].gateway.kill()
    said = asyncio.run(look())
    assert "Your shelf is on h2, which does not answer now; it stays there." in said
    assert "An earlier session" not in said
