"""A shelf goes to the host of its user's next session, if no notebook has it where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel.ipc.executor_client import ExecutorClient
from tests.gateway.client import Client
from tests.gateway.cluster.conftest import Cluster
from tests.gateway.cluster.test_front import execute, host_of, start_on_both
from tests.gateway.conftest import run
from tests.gateway.devices import until

pytestmark = pytest.mark.heavy

IMPORT = "import torch; from sharedkernel import shelf\n"
HOST = "/sharedkernel/api/hosts/h2"


async def h2(cluster: Cluster) -> Any:
    hosts = (await cluster.client("ada").request("GET", "/sharedkernel/api/hosts")).body["hosts"]
    return next(host for host in hosts if host["name"] == "h2")


async def set_cordon(cluster: Cluster, *, cordoned: bool) -> None:
    assert (await cluster.client("ada").request("PUT", HOST, {"cordoned": cordoned})).status == 204

    async def is_known() -> bool:
        return bool((await h2(cluster))["cordoned"]) == cordoned

    await until(is_known)


async def wait_for_left(cluster: Cluster, sessions: int) -> None:
    """Wait until the front knows that grace has something left on h2, and as many sessions."""
    expected = {"grace": {"sessions": sessions, "has_left": True}}

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
    run(set_cordon(cluster, cordoned=False))
    for host in cluster.hosts.values():
        run(host.client("ada").request("DELETE", "/sharedkernel/api/shelves/grace"))


def test_a_shelf_leaves_a_host_that_is_drained(whole: Cluster) -> None:
    """With all that it holds; its user is told, the host has nothing of theirs left, and it stays when it is not."""

    async def test() -> None:
        grace = whole.client("grace")
        kernel = await start_on_h2(grace)
        make = "x = torch.arange(2_000_000.); shelf['model'] = {'x': x, 'half': x[::2]}; shelf['a/b ü'] = torch.ones(3)"
        await execute(grace, kernel, IMPORT + make)
        await grace.end(kernel)
        await wait_for_left(whole, 0)
        again = await grace.start()
        assert host_of(again) == "h2", "where something is left, the next session starts"
        assert await execute(grace, again, IMPORT + "print(sorted(shelf))") == "['a/b ü', 'model']"
        await grace.end(again)
        await wait_for_left(whole, 0)

        await set_cordon(whole, cordoned=True)
        elsewhere = await grace.start()
        assert host_of(elsewhere) == "h1"
        check = "m = shelf['model']; m['x'][2] = 7; print(sorted(shelf), m['half'][1].item(), m['x'].sum().item())"
        said = await execute(grace, elsewhere, IMPORT + check)
        assert "Your shelf was on h2 (2 names, 7.6 MiB) and is brought to this machine" in said
        total = await execute(grace, elsewhere, "x = torch.arange(2_000_000.); x[2] = 7; print(x.sum().item())")
        assert said.endswith(f"['a/b ü', 'model'] 7.0 {total}")

        async def is_drained() -> bool:
            return bool((await h2(whole))["drained"])

        await until(is_drained)
        audited = (await whole.client("ada").request("GET", "/sharedkernel/api/audit?user=grace")).body["entries"]
        actions = {(entry.get("host"), entry["action"], entry.get("name")) for entry in audited}
        assert {("h1", "bring shelf", "model"), ("h2", "carry shelf away", "model")} <= actions

    run(test())


def test_what_had_come_but_was_not_taken_off_is_taken_off(whole: Cluster) -> None:
    """As where the old host was away just then."""

    async def test() -> None:
        grace = whole.client("grace")
        kernel = await start_on_h2(grace)
        await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
        await grace.end(kernel)
        await wait_for_left(whole, 0)
        old, new = [ExecutorClient(whole.hosts[name].runtime_directory) for name in ("h2", "h1")]
        async with contextlib.AsyncExitStack() as connections:
            for executor in (old, new):
                await executor.connect()
                connections.push_async_callback(executor.close)
            part = await old.read_shelf("grace", "model", offset=0, length=1 << 20)
            at = round(1e6 * part.shelved_at) / 1e6
            await new.write_shelf("grace", "model", part=part.data, offset=0, total=part.total_bytes, at=at)
        await set_cordon(whole, cordoned=True)
        elsewhere = await grace.start()
        assert host_of(elsewhere) == "h1"

        async def is_drained() -> bool:
            return bool((await h2(whole))["drained"])

        await until(is_drained)
        assert (await execute(grace, elsewhere, IMPORT + "print(shelf['model'].sum().item())")).endswith("3.0")

    run(test())


def test_a_shelf_stays_where_its_user_has_a_notebook(whole: Cluster) -> None:
    """That one would miss it."""

    async def test() -> None:
        grace = whole.client("grace")
        kernel = await start_on_h2(grace)
        await execute(grace, kernel, IMPORT + "shelf['model'] = torch.ones(3)")
        await wait_for_left(whole, 1)
        await set_cordon(whole, cordoned=True)
        elsewhere = await grace.start()
        assert host_of(elsewhere) == "h1"
        assert await execute(grace, elsewhere, IMPORT + "print(list(shelf))") == "[]"
        assert await execute(grace, kernel, "print(shelf['model'].sum().item())") == "3.0"

    run(test())


def test_only_fronts_carry_shelves(whole: Cluster) -> None:
    """A user's own token reads and writes nothing that way, neither at a host nor through a front."""

    async def test() -> None:
        path = "/sharedkernel/api/shelves/ada/model/parts"
        for client in (whole.hosts["h1"].client("ada"), whole.client("ada")):
            for method, query in (
                ("GET", "offset=0&length=1"),
                ("PUT", "offset=0&total=1&at_us=0"),
                ("DELETE", "number=1"),
            ):
                body = {} if method == "PUT" else None
                answer = await client.request(method, f"{path}?{query}", body)
                assert answer.status in (403, 404), answer

    run(test())
