"""A training in a thread shares the device as one in a cell does, and is moved out for others without a trace.

And no service keeps what it has answered; ``python -m tests.memory.requests`` asks each 100,000 times.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmarks.stack.client import Notebook, Route, open_notebook
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.text import session_state
from tests.memory.requests import growth, too_much

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only"),
]

MIB = 1 << 20
#: of each process, how many times as many of the gateway, and bytes that each may grow by: what is kept of one is seen
#: from 5 KiB on, of the gateway's from 1, which once kept 5 to 13; 1.3 MiB are grown by with 300 as with 500
_NUM_REQUESTS, _OF_GATEWAY, _MOST_GROWTH = 600, 5, 3 << 20
#: six layers of 1000 x 1000 with Adam, which keep 92 MiB: parameters and two moments
_SETUP = """\
import threading, time, torch
torch.set_num_threads(1)
losses, errors = [], []
stop = False
def train(num_steps):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1000, 1000) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs = torch.randn(16, 1000)
    for _ in range(num_steps):
        if stop: break
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
def run(num_steps):
    try: train(num_steps)
    except BaseException as error: errors.append(repr(error))
def start(num_steps):
    global thread
    losses.clear()
    thread = threading.Thread(target=run, args=(num_steps,))
    thread.start()
"""


@contextlib.asynccontextmanager
async def two_notebooks(**options: Any) -> AsyncIterator[tuple[LocalStack, Notebook, Notebook]]:
    """Yield a stack, and notebooks of two of its users."""
    with LocalStack(users=["ada", "grace"], **options) as stack:
        routes = [
            Route(name=user, url=stack.gateway_url, token=stack.token(user), kernel=KERNEL_NAME) for user in stack.users
        ]
        async with open_notebook(routes[0]) as ada, open_notebook(routes[1]) as grace:
            yield stack, ada, grace


async def wait_for_steps(notebook: Notebook, more: int) -> int:
    """Wait until the thread has done *more* steps; return how many it has in all."""
    return int(
        await notebook.value(
            f"before = len(losses)\nwhile len(losses) < before + {more} and not errors: time.sleep(0.01)\n"
            "assert not errors, errors\nprint(len(losses))"
        )
    )


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
async def test_a_training_in_a_thread_is_moved_out_for_others_and_back(times: int) -> None:
    """While no cell runs; its losses are bit for bit those of a training in a cell."""
    async with two_notebooks(capacity="450MiB", executor_arguments=["--memory-quantum", "1s"]) as (stack, ada, grace):
        await ada.run(_SETUP)
        await grace.run("import torch")
        await ada.run("train(20)\nalone, losses = losses, []")
        await ada.run("start(10**6)")
        for _ in range(times):
            await wait_for_steps(ada, 4)
            # more than there is beside the training: it has to go, and comes back when this is freed
            await grace.run(f"big = torch.ones({330 * MIB // 4})\ndel big")
        assert await wait_for_steps(ada, 20) > 20
        await ada.run("stop = True\nthread.join()\nassert losses[:20] == alone, (losses[:3], alone[:3])")
        (session,) = (session for session in stack.status().sessions if session.user == "ada")
        assert session.offloads >= times - 1  # the first may find room


@pytest.mark.beside_busy_loops
async def test_a_training_in_a_thread_takes_turns_with_another_users_cell() -> None:
    """Both go on all the time, and the thread's session is shown as computing."""
    async with two_notebooks(capacity="1200MiB") as (stack, ada, grace):
        await asyncio.gather(ada.run(_SETUP), grace.run(_SETUP))
        await ada.run("start(10**6)")
        training = asyncio.create_task(grace.run("train(60)"))
        seen = set()
        while "computing in a thread" not in seen:  # else it waits for its turn
            await wait_for_steps(ada, 3)
            seen |= {session_state(session) for session in stack.status().sessions if session.user == "ada"}
        await training
        await ada.run("stop = True\nthread.join()")
        assert all(user.attained_service_seconds > 0 for user in stack.status().users)


def test_answered_requests_take_no_memory() -> None:
    """Cells and requests of all kinds, to gateway, executor, relay, Jupyter server and session, by real clients."""
    grown = growth(_NUM_REQUESTS, _OF_GATEWAY)
    assert not too_much(grown, _MOST_GROWTH), grown
