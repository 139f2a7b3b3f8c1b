"""An admin changes who is served before whom, under notebooks that train."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sharedkernel.scheduling.policies.registry import POLICIES
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import until

PATH = "/sharedkernel/api/policy"

TRAINING = """
import pathlib, torch, sharedkernel
weights, steps = torch.zeros(64), 0
while not pathlib.Path({end!r}).exists():
    for _ in sharedkernel.iterations(range(50)):
        weights += 1
        steps += 1
print(steps, weights.min().item() == weights.max().item() == steps)
"""


async def served(admin: Client) -> dict[str, float]:
    """Return what each session was served, device-seconds."""
    status = (await admin.request("GET", "/sharedkernel/api/status")).body
    return {session["id"]: session["attained_service_seconds"] for session in status["sessions"]}


async def test_trainings_go_on_whatever_the_policy_becomes(stack: Stack, tmp_path: Path) -> None:
    """Two trainings are served under each policy that is set, never less than before, and end with right results."""
    end = tmp_path / "end"
    ada, clients = stack.client("ada"), [stack.client("grace"), stack.client("mary")]
    kernels = [await client.start() for client in clients]
    async with clients[0].attach(kernels[0]) as first, clients[1].attach(kernels[1]) as second:
        code = TRAINING.format(end=str(end))
        trainings = asyncio.gather(first.run(code), second.run(code))
        at_start = await served(ada)
        for policy, takes_turns in (
            ("srtf", True), ("pack", False), ("las", False), ("gittins", False), ("priority", True),
            ("fifo", False), ("fair", True),
        ):  # fmt: skip
            answer = await ada.request("PUT", PATH, {"policy": policy})
            assert (answer.status, answer.body["policy"]) == (200, policy)
            before = await served(ada)
            assert all(before[kernel] >= at_start[kernel] for kernel in kernels)

            async def go_on(before: dict[str, float] = before, needed: Any = all if takes_turns else any) -> bool:
                now = await served(ada)
                return bool(needed(now[kernel] > before[kernel] for kernel in kernels))

            await until(go_on)
            status = (await ada.request("GET", "/sharedkernel/api/status")).body
            assert status["device"]["policy"] == policy
            assert all(session["remaining_seconds"] >= 0 for session in status["sessions"])
        end.touch()
        for outcome in await trainings:
            assert outcome["status"] == "ok", outcome
            steps, is_right = outcome["text"].split()
            assert int(steps) > 0
            assert is_right == "True"


async def test_only_admins_set_the_policy_and_only_to_one_that_there_is(stack: Stack) -> None:
    """Anybody sees it; a user's PUT and a wrong one are refused in one sentence, and change nothing."""
    ada, grace = stack.client("ada"), stack.client("grace")
    before = (await grace.request("GET", PATH)).body
    assert (before["policy"], list(before["devices"].values())) == ("fair", ["fair"])
    for client, body, status, part in (
        (grace, {"policy": "las"}, 403, "only admins may change the policy."),
        (ada, {"policy": "fare"}, 400, f"unknown policy 'fare'; choose one of {', '.join(POLICIES)}."),
        (ada, {"policy": 3}, 400, "`policy` is 3; it should be text."),
        (ada, {}, 400, 'no `policy` is named; send one such as {"policy": "fair"}.'),
    ):
        answer = await client.request("PUT", PATH, body)
        assert (answer.status, answer.body["message"]) == (status, part)
    assert (await ada.request("GET", PATH)).body == before


async def test_the_configuration_sets_the_policy_of_executors_that_come_later_too(stack: Stack) -> None:
    """It is set on SIGHUP and on an executor that is started anew; a name that there is not changes nothing."""
    usual = stack.config_path.read_text()

    async def has_changed() -> bool:
        answer = await stack.client("ada").request("GET", PATH)
        return answer.status == 200 and answer.body["policy"] == "las"

    stack.reload(f"{usual}\nc.SharedKernelGateway.policy = 'las'\n")
    await until(has_changed)
    wrong = stack.reload(f"{usual}\nc.SharedKernelGateway.policy = 'lass'\n")
    assert "policy is 'lass'; write one of 'fair', 'fifo'" in wrong
    stack.executor.kill()
    stack.executor.start()
    await until(has_changed)
