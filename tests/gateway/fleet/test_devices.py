"""Several devices behind one gateway: two real executors on the host."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import Stack, wait_for
from tests.gateway.devices import DEVICES, KEEP, devices_of, execute, keep, start_on_each, status_of


@pytest.mark.heavy
async def test_sessions_go_where_there_is_least_to_do(devices: Stack) -> None:
    """One each, then where one has gone; sessions being started count, so that five at once are spread."""
    grace = devices.client("grace")
    started = [await grace.start(), await grace.start()]
    kernels = dict(zip(await devices_of(devices, *started), started, strict=True))
    assert sorted(kernels) == DEVICES
    for device in DEVICES:
        await grace.end(kernels[device])
        kernels[device] = await grace.start()
        assert await devices_of(devices, kernels[device]) == [device]
    more = await asyncio.gather(*(grace.start() for _ in range(4)))
    assert sorted(await devices_of(devices, *more)) == ["host", "host", "host:1", "host:1"]


async def test_a_notebook_is_placed_by_the_memory_it_had(devices: Stack) -> None:
    """A device that lacks it is passed over, for this notebook only."""
    grace = devices.client("grace")
    big = await grace.start(KERNEL_NOTEBOOK="big.ipynb")
    await keep(devices, grace, big, 400)
    await grace.end(big)
    full = await grace.start(KERNEL_NOTEBOOK="full.ipynb")
    await keep(devices, grace, full, 700)
    others = [await grace.start(), await grace.start()]
    where, *elsewhere = await devices_of(devices, full, *others)
    assert where not in elsewhere
    assert await devices_of(devices, await grace.start(KERNEL_NOTEBOOK="big.ipynb")) == elsewhere[:1]
    assert await devices_of(devices, await grace.start(KERNEL_NOTEBOOK="new.ipynb")) == [where]


async def test_all_that_can_be_done_to_a_session_reaches_its_executor(devices: Stack) -> None:
    """Restart, interrupt, offload, the end: on either device."""
    grace = devices.client("grace")
    for kernel in (await start_on_each(devices, grace)).values():
        path = f"/api/kernels/{kernel}"
        before = await execute(grace, kernel, "import os; print(os.getpid())")
        assert (await grace.request("POST", f"{path}/restart")).status == 200
        assert await execute(grace, kernel, "import os; print(os.getpid())") != before
        async with grace.attach(kernel) as channels:
            # What comes right behind a cell that failed is aborted, unless that was said not to stop it.
            cell = {"code": "print('on')\nwhile True: pass", "silent": False, "stop_on_error": False}
            await channels.send("execute_request", cell)
            await channels.until("stream", text="on\n")
            assert (await grace.request("POST", f"{path}/interrupt")).status == 204
            await channels.until("execute_reply", status="error")
        await execute(grace, kernel, KEEP.format(8))
        offload = f"/sharedkernel/api/sessions/{kernel}/offload"
        while (answer := await grace.request("POST", offload)).status == 409:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the cell's end is not known yet
        assert answer.status == 204
        sessions = {session["id"]: session for session in (await status_of(devices))["sessions"]}
        assert sessions[kernel]["offloaded_bytes"] > 7 << 20
        assert await execute(grace, kernel, "print(int(kept.sum()))") == str(8 << 18)
        await grace.end(kernel)
    assert (await status_of(devices))["sessions"] == []


async def test_quotas_hold_over_all_devices_or_on_each(devices: Stack) -> None:
    """Two sessions allowed: one on each device, and no third anywhere, at once or later.

    Half of the device's memory is half of each; what is kept on one leaves the other's quota as it was.
    """
    linus = devices.client("linus")
    answers = await asyncio.gather(*(linus.request("POST", "/api/kernels", {}) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [201, 201, 429, 429]
    kernels = [answer.body["id"] for answer in answers if answer.status == 201]
    assert sorted(await devices_of(devices, *kernels)) == DEVICES
    assert (await linus.request("POST", "/api/kernels", {})).status == 429
    for kernel in kernels:
        await execute(linus, kernel, KEEP.format(300))
        async with linus.attach(kernel) as channels:
            reply = await channels.run("more = torch.ones(400 << 18)")
        assert reply["status"] == "error"
        assert "quota" in reply["text"]
    user = next(user for user in (await status_of(devices))["users"] if user["name"] == "linus")
    assert [entry["quota_bytes"] for entry in user["devices"]] == [512 << 20] * 2
    assert user["quota_bytes"] == 1 << 30


def test_the_rule_may_be_changed_while_the_gateway_serves_and_the_devices_may_not(devices: Stack) -> None:
    """A reload says which is which; a rule that there is not changes nothing."""
    usual = devices.config_path.read_text()
    for rule, news in (("horus", "was read again"), ("chance", "placement is 'chance'; write one of 'least-loaded'")):
        assert news in devices.reload(f"{usual}\nc.SharedKernelGateway.placement = {rule!r}\n")
        assert asyncio.run(status_of(devices))["placement"] == "horus"
    seen = len(devices.gateway_log())
    devices.reload(f"{usual}\nc.SharedKernelGateway.executors.append('host:2')\n")
    wait_for(lambda: "restart the gateway" in devices.gateway_log()[seen:])
    assert "(sessions run on): c.SharedKernelGateway.executors\n" in devices.gateway_log()[seen:]
    assert len(asyncio.run(status_of(devices))["devices"]) == 2
