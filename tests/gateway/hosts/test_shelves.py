"""A shelf stays on its host: the next session starts there if it can, and its user is told where it cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.fuzz.conftest import execute
from tests.gateway.hosts.conftest import HOSTS, Cluster
from tests.gateway.hosts.test_front import host_of, start_on_both, start_on_h2, wait_for_left

pytestmark = pytest.mark.heavy

IMPORT = "import torch; from sharedkernel import shelf\n"
SHELVES = "/sharedkernel/api/shelves"


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


async def test_shelves_of_all_hosts_are_listed_and_emptied_through_a_front(cluster: Cluster) -> None:
    grace = cluster.client("grace")
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
    linus = cluster.client("linus")
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


async def test_a_shelf_stays_on_a_host_that_is_drained(cluster: Cluster) -> None:
    """The drain names who has one, and ends without them only if told so; afterwards it is there again."""
    grace = cluster.client("grace")
    kernel = await start_on_h2(grace)
    await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
    await grace.end(kernel)
    await wait_for_left(cluster, "grace", 0)
    again = await grace.start()
    assert host_of(again) == "h2", "where the shelf is, the next session starts"
    await grace.end(again)
    await wait_for_left(cluster, "grace", 0)

    code, said = await command(cluster, "drain", "h2", "--timeout", "0s")
    assert code == 1
    assert "grace: a shelf\n" in said
    elsewhere = await grace.start()
    assert host_of(elsewhere) == "h1"
    said = await execute(grace, elsewhere, IMPORT + "print(list(shelf))")
    assert "Your shelf is on h2, which is to be taken out of service (ask its admin); it stays there." in said
    assert said.endswith("[]")
    await grace.end(elsewhere)
    assert not (await cluster.known())["h2"]["drained"]
    code, said = await command(cluster, "drain", "h2", "--leave-shelves")
    assert code == 0
    assert said.splitlines()[-1] == "h2 is drained: no user has a session there; shelves remain of grace."

    assert (await command(cluster, "undrain", "h2"))[0] == 0
    back = await grace.start()
    assert host_of(back) == "h2"
    assert await execute(grace, back, IMPORT + "print(list(shelf))") == "['model']"
