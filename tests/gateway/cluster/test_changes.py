"""Changes of quotas and policy that reach a host which was away when they were made."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from sharedkernel.errors import Refused
from sharedkernel.gateway.cluster.changes import MAX_BYTES, MAX_CHANGES, PendingChanges, RuleChange
from sharedkernel.gateway.cluster.hosts import Host
from tests.gateway.cluster.conftest import Cluster
from tests.gateway.conftest import wait_for

QUOTAS, POLICY = "/sharedkernel/api/quotas", "/sharedkernel/api/policy"
AWAY = Host(name="h2", address="http://h2:1")


def change(uri: str, body: Any = None, method: str = "PUT") -> RuleChange:
    return RuleChange(method=method, uri=uri, body="" if body is None else json.dumps(body), user="ada")


def pending(tmp_path: Path) -> PendingChanges:
    return PendingChanges(tmp_path / "changes.json", cast("Any", None), cast("Any", None))


def kept(tmp_path: Path) -> list[tuple[str, str, Any]]:
    """Return method, route and body of each change that waits for h2, as the file has them."""
    changes = json.loads((tmp_path / "changes.json").read_text()).get("h2", [])
    return [(each["method"], each["uri"], each["body"] and json.loads(each["body"])) for each in changes]


def test_only_what_still_counts_waits(tmp_path: Path) -> None:
    """Later requests replace earlier ones, or are joined to them, as far as the effect is the same."""
    changes = pending(tmp_path)
    changes.add("h2", change(QUOTAS, {"users": {"ada": {"memory": "1GiB", "share": 2}}}))
    changes.add("h2", change(QUOTAS, {"users": {"ada": {"share": 3}}, "default": {"sessions": 2}}))
    joined = {"users": {"ada": {"memory": "1GiB", "share": 3}}, "default": {"sessions": 2}}
    assert kept(tmp_path) == [("PUT", QUOTAS, joined)]
    for policy in ("las", "fifo"):
        changes.add("h2", change(POLICY, {"policy": policy}))
    changes.add("h2", change(f"{QUOTAS}?user=ada", method="DELETE"))
    assert kept(tmp_path)[1:] == [("PUT", POLICY, {"policy": "fifo"}), ("DELETE", f"{QUOTAS}?user=ada", "")]
    changes.add("h2", change(QUOTAS, method="DELETE"))
    assert kept(tmp_path) == [("PUT", POLICY, {"policy": "fifo"}), ("DELETE", QUOTAS, "")]
    assert "h2" in pending(tmp_path)
    changes.forget("h2")
    assert "h2" not in pending(tmp_path)


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    """Beyond that, nothing is changed anywhere, and the admin hears why."""
    changes = pending(tmp_path)
    for number in range(MAX_CHANGES):
        changes.check([AWAY], b"{}")
        changes.add("h2", change(f"{QUOTAS}?user=u{number}", method="DELETE"))
    with pytest.raises(Refused, match=r"100 changes wait for h2, which is away; try again .*, or forget it"):
        changes.check([AWAY], b"{}")
    with pytest.raises(Refused, match="65537 bytes"):
        changes.check([], bytes(MAX_BYTES + 1))


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    """A front starts all the same."""
    (tmp_path / "changes.json").write_text('{"h2": [1]}')
    assert "h2" not in pending(tmp_path)


@pytest.mark.heavy
def test_a_host_that_was_away_gets_them_when_it_is_back(cluster: Cluster) -> None:
    """In their order, also where the front was restarted meanwhile; hosts that answered had them at once."""
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()
    wait_for(lambda: cluster.answering() == {"h1"})

    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await cluster.client("ada").request(method, path, body)
        assert answer.status == 200, answer
        return answer.body

    def rules_of(host: str) -> tuple[Any, Any]:
        async def look() -> tuple[Any, Any]:
            client = cluster.hosts[host].client("ada")
            quotas = (await client.request("GET", QUOTAS)).body["users"]
            return quotas.get("hedy", {}).get("share", {}).get("value"), (await client.request("GET", POLICY)).body

        share, policy = asyncio.run(look())
        return share, policy.get("policy")

    asyncio.run(ask("PUT", QUOTAS, {"users": {"hedy": {"share": 2.0}}}))
    asyncio.run(ask("PUT", POLICY, {"policy": "las"}))
    wait_for(lambda: rules_of("h1") == (2.0, "las"))
    cluster.fronts[0].kill()
    cluster.fronts[0].start()
    cluster.fronts[0].wait_until_ready()
    asyncio.run(ask("PUT", QUOTAS, {"users": {"hedy": {"share": 3.0}}}))
    gateway.start()
    gateway.wait_until_ready()
    wait_for(lambda: rules_of("h2") == (3.0, "las"))
    wait_for(cluster.is_whole)
    asyncio.run(ask("PUT", POLICY, {"policy": "fair"}))
    asyncio.run(ask("DELETE", QUOTAS))
    wait_for(lambda: {rules_of(host)[1] for host in ("h1", "h2")} == {"fair"})
