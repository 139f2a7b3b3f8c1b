"""Quotas as users meet them: refused in time, changed while running, explained."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.gateway.conftest import Stack


def users_of(status: dict[str, Any]) -> dict[str, Any]:
    return {user["name"]: user for user in status["users"]}


async def test_parallel_requests_cannot_slip_past_the_limit(stack: Stack) -> None:
    """Of six requests at once exactly as many are granted as are allowed; the others get a sentence."""
    grace = stack.client("grace")
    answers = await asyncio.gather(*(grace.request("POST", "/api/kernels", {}) for _ in range(6)))
    refused = [answer for answer in answers if answer.status != 201]
    assert [answer.status for answer in refused] == [429] * 3
    assert refused[0].body["reason"] == "quota"
    assert "grace may have 3 sessions at a time and has 3" in refused[0].body["message"]
    kernels = (await grace.request("GET", "/api/kernels")).body
    assert len(kernels) == 3
    body = {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    answer = await grace.request("POST", "/api/sessions", body)
    assert (answer.status, answer.body["reason"]) == (429, "quota"), "notebook sessions are no way around"
    await grace.end(kernels[0]["id"])
    await grace.start()


async def test_limits_that_an_earlier_gateway_knew_do_not_stay(stack: Stack) -> None:
    """Nor do they for a session that was shut down, of a user whom no quota names any more."""
    ada, mary = stack.client("ada"), stack.client("mary")

    async def shares() -> dict[str, float]:
        users = users_of((await ada.request("GET", "/sharedkernel/api/status")).body)
        return {name: users[name]["share"] for name in ("ada", "mary") if name in users}

    await ada.start()
    await ada.end(await mary.start(KERNEL_NOTEBOOK="a.ipynb"))
    limits = {"users": {"ada": {"share": 7}}, "groups": {"class": {"share": 5}}}
    assert (await ada.request("PUT", "/sharedkernel/api/quotas", limits)).status == 200
    assert await shares() == {"ada": 7.0, "mary": 5.0}
    stack.gateway.stop()
    stack.restart_gateway()
    while await shares() != {"ada": 1.0, "mary": 2.0}:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_an_admin_changes_quotas_until_the_configuration_is_read_again(stack: Stack) -> None:
    """A PUT holds at once and says that it was one; a reload ends it."""
    ada, linus = stack.client("ada"), stack.client("linus")
    await linus.start()
    answer = await ada.request("PUT", "/sharedkernel/api/quotas", {"users": {"linus": {"sessions": 2, "share": 4}}})
    assert answer.body["users"]["linus"]["share"] == {"value": 4.0, "source": "put: user linus"}
    await linus.start()
    users = users_of((await ada.request("GET", "/sharedkernel/api/status")).body)
    assert users["linus"]["share"] == 4.0
    seen = (await linus.request("GET", "/sharedkernel/api/quotas")).body["users"]
    assert list(seen) == ["linus"]
    assert seen["linus"]["memory"] == {"value": "256MiB", "source": "config: user linus"}
    stack.reload(stack.config_path.read_text())
    seen = (await linus.request("GET", "/sharedkernel/api/quotas")).body["users"]
    assert seen["linus"]["sessions"] == {"value": 1, "source": "config: user linus"}


async def test_a_reload_brings_quotas_groups_and_admins(stack: Stack) -> None:
    """SIGHUP reads the file again; sessions that run get the new limits."""
    ada, grace = stack.client("ada"), stack.client("grace")
    await grace.start()
    news = "c.SharedKernelGateway.quotas = {'default': {'share': 9}}\nc.SharedKernelGateway.admins = {'grace'}\n"
    news += "c.SharedKernelGateway.groups = {}\n"
    assert "was read again" in stack.reload(f"{stack.config_path.read_text()}\n{news}")
    share = 2.0
    while share != 9.0:  # the executor is told after the log
        share = users_of((await grace.request("GET", "/sharedkernel/api/status")).body)["grace"]["share"]
    assert (await ada.request("PUT", "/sharedkernel/api/quotas", {})).status == 403
    assert (await grace.request("PUT", "/sharedkernel/api/quotas", {})).status == 200
