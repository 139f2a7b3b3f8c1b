"""The notebooks divided among several users, at the same time, on a device too small for all of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.notebooks.alone import Measured
from benchmarks.notebooks.comparing import Difference
from benchmarks.notebooks.running import TOO_LONG, Frame, Run, read_cells, run_notebook, shared_kernel
from benchmarks.notebooks.watching import Watch, watched
from sharedkernel.local_stack import LocalStack

#: what a notebook keeps besides its own, so that it has to give way: those to learn from use little memory themselves
_KEEP = """
import torch
torch._kept = torch.arange({count})
torch._sum = torch._kept.sum().item()
del torch
"""
_STILL_THERE = """
import torch
assert torch._kept.sum().item() == torch._sum, "memory was lost"
"""
_ELEMENT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a round is run with."""

    users: int
    #: seconds of a user's thinking before each cell; after half of it a notebook may be offloaded
    pause: float
    #: seconds that a notebook may take
    limit: float
    #: bytes that each notebook keeps besides its own
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All notebooks, once."""

    capacity_bytes: int
    seconds: float
    num_offloads: int
    #: the longest time that a session waited without a break, seconds
    longest_wait: float
    #: by notebook: where it differs from the stock kernel
    differing: dict[str, list[Difference]]
    #: notebooks that waited when their time was up, and for what
    stuck: dict[str, str]
    #: notebooks that ended otherwise than on the stock kernel
    otherwise: dict[str, str]


async def run_round(
    notebooks: Sequence[Measured],
    capacity: int,
    conditions: Conditions,
    order: random.Random,
    say: Callable[[str], None],
) -> Round:
    """Divide the *notebooks* among users in an order drawn by *order*, and run them.

    Parameters
    ----------
    notebooks
        As they ran by themselves.
    capacity
        Bytes of the device.
    conditions
        Of all rounds.
    order
        Draws who has which notebook, and in which order.
    say
        Is called with a line on each notebook that is stuck.
    """
    shuffled = order.sample(list(notebooks), len(notebooks))
    users = [f"user-{number}" for number in range(conditions.users)]
    runs: dict[str, Run] = {}
    stuck: dict[str, str] = {}
    keeping = Frame(_KEEP.format(count=conditions.kept_bytes // _ELEMENT_BYTES), _STILL_THERE)
    quotas = {"default": {"offload_after": conditions.pause / 2}}
    with LocalStack(users=users, capacity=str(capacity), quotas=quotas) as stack:
        begun = time.monotonic()

        async def work(user: str, own: Sequence[Measured], watch: Watch) -> None:
            for notebook in own:
                run = await run_notebook(
                    read_cells(notebook.folder),
                    shared_kernel(stack, user),
                    files=notebook.folder,
                    limit=conditions.limit,
                    pause=conditions.pause,
                    frame=keeping,
                    at_timeout=lambda: watch.wait_of(user),
                )
                runs[notebook.name] = run
                if run.outcome == TOO_LONG and run.noted is not None:
                    stuck[notebook.name] = run.noted
                    say(f"{notebook.name} of {user} was stuck after {len(run.cells)} cells: {run.noted}")

        async with watched(stack) as watch:
            await asyncio.gather(
                *(work(user, shuffled[number :: conditions.users], watch) for number, user in enumerate(users))
            )
        seconds = time.monotonic() - begun
    return Round(
        capacity_bytes=capacity,
        seconds=seconds,
        num_offloads=watch.num_offloads,
        longest_wait=watch.longest_wait,
        differing={one.name: found for one in notebooks if (found := one.beyond_floor(runs[one.name]))},
        stuck=stuck,
        otherwise={
            one.name: f"{one.stock[0].outcome} on stock, {runs[one.name].outcome} on Shared GPU"
            for one in notebooks
            if one.stock[0].outcome != runs[one.name].outcome
        },
    )
