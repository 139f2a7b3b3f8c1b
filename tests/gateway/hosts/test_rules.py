"""Quotas and policy reach all hosts; one that was away gets what holds at the front once it is back."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, cast

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.config.quotas import Quotas
from tests.gateway.conftest import wait_for
from tests.gateway.hosts.conftest import HOSTS, Cluster

QUOTAS, POLICY = "/sharedkernel/api/quotas", "/sharedkernel/api/policy"


def test_overrides_come_back_as_they_were_put() -> None:
    """Whatever is put in their place: what was there before has no effect any more."""
    first, second = Quotas(), Quotas()
    first.put(
        {
            "default": {"memory": "50%", "linger": "1h"},
            "groups": {"phd": {"offload_after": "never", "sessions": None}},
            "users": {"ada": {"cull_after": "0s", "share": 2}},
        }
    )
    second.put({"users": {"grace": {"share": 3}, "ada": {"priority": 1}}})
    second.put(first.overrides(), replaces=True)
    assert second.overrides() == first.overrides()
    assert second.explain("ada") == first.explain("ada")
    with pytest.raises(ConfigError):
        second.put({"users": {"ada": {"share": 0}}}, replaces=True)
    assert second.overrides() == first.overrides()


@pytest.mark.heavy
def test_a_host_that_was_away_gets_what_holds(cluster: Cluster) -> None:
    """It is named in the answer; hosts that answer have it at once. The front may be restarted before and meanwhile."""

    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await cluster.client("ada").request(method, path, body)
        assert answer.status == 200, answer
        return answer.body

    def change(method: str, path: str, body: Any = None) -> list[str]:
        notes = asyncio.run(ask(method, path, body)).get("notes", [])
        return [note for note in notes if note.startswith(HOSTS)]

    def rules_of(host: str) -> tuple[dict[str, float], Any]:
        """Return the shares that were put at a host, and its policy."""

        async def look() -> tuple[dict[str, float], Any]:
            client = cluster.hosts[host].client("ada")
            users = (await client.request("GET", QUOTAS)).body["users"]
            shares = {name: entry["share"] for name, entry in users.items()}
            policy = (await client.request("GET", POLICY)).body["policy"]
            return {name: share["value"] for name, share in shares.items() if share["source"] != "built in"}, policy

        return asyncio.run(look())

    def restart_front() -> None:
        cluster.fronts[0].kill()
        cluster.fronts[0].start()
        cluster.fronts[0].wait_until_ready()

    assert change("PUT", QUOTAS, {"users": {"mary": {"share": 5.0}, "rosa": {"share": 4.0}}}) == []
    wait_for(lambda: all(rules_of(host)[0] == {"mary": 5.0, "rosa": 4.0} for host in ("h1", "h2")))
    restart_front()
    wait_for(cluster.is_whole)
    gateway = cluster.hosts["h2"].gateway
    process = cast("Any", gateway.process)
    process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.answering() == {"h1"})
        named = ["h2 does not answer; it gets this once it is back."]
        assert change("PUT", QUOTAS, {"users": {"hedy": {"share": 2.0}}}) == named
        assert change("DELETE", f"{QUOTAS}?user=mary") == named
        assert change("PUT", POLICY, {"policy": "las"}) == named
        assert rules_of("h1") == ({"hedy": 2.0, "rosa": 4.0}, "las")
        restart_front()
        assert change("PUT", QUOTAS, {"users": {"hedy": {"share": 3.0}}}) == named
    finally:
        process.send_signal(signal.SIGCONT)
    wait_for(lambda: rules_of("h2") == ({"hedy": 3.0, "rosa": 4.0}, "las"))
    wait_for(cluster.is_whole)
    wait_for(lambda: change("PUT", POLICY, {"policy": "fair"}) == [])
    assert change("DELETE", QUOTAS) == []
    assert rules_of("h1") == rules_of("h2") == ({}, "fair")
