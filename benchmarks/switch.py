"""How long the device stands still when it changes hands: from one session's boundary to the other's first operation.

Two users train. Each notebook notes the time just before each `zero_grad`, which is the boundary, and right after the
first operation that follows it, where it waits when it has to. All processes of a machine read the same clock.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.stack.client import open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, percentile
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import prepare
from sharedkernel.local_stack import LocalStack

_USERS = ("ada", "grace")
#: iterations of both trainings, in seconds
_ITERATION = 0.005
#: an operation that took longer has waited for the device, in seconds
_WAITED = 0.001

_TRAIN = """
probe, boundaries, operations = torch.zeros(1), [], []
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    boundaries.append(time.monotonic())
    training.optimizer.zero_grad()
    probe.add_(1)
    operations.append(time.monotonic())
    training.loss(training.model(training.inputs), training.labels).backward()
    training.optimizer.step()
print(json.dumps([boundaries, operations]))
"""


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `switch`."""
    with LocalStack(users=_USERS, **conditions.stack_options) as stack:
        return asyncio.run(_measure(conditions, stack))


async def _measure(conditions: Conditions, stack: LocalStack) -> list[Result]:
    seconds = conditions.effort.seconds(20)
    switches: list[float] = []
    async with AsyncExitStack() as contexts:
        notebooks = [await contexts.enter_async_context(open_notebook(gateway_route(stack, user))) for user in _USERS]
        conditions.say("sizing the trainings")
        iterations = [await prepare(notebook, "mlp", iteration_seconds=_ITERATION) for notebook in notebooks]
        conditions.say(f"two trainings for {seconds:g} s")
        for _ in range(conditions.effort.repeats or 1):
            code = _TRAIN.format(seconds=seconds)
            one, other = await asyncio.gather(*(notebook.value(code) for notebook in notebooks))
            switches += [*hand_overs(one[0], other), *hand_overs(other[0], one)]
    if not switches:
        raise BenchmarkFailed("the device never changed hands; is it slower than the trainings are long?")
    return [
        Result(
            metric="p50_seconds",
            value=percentile(switches, 50),
            unit="seconds",
            target=Target("<", 0.0012),
            how=f"Median time from a boundary (just before `zero_grad`) of the session that gives the device up to the "
            f"end of the first operation of the session that gets it, over {len(switches)} switches between two "
            f"trainings with iterations of {' and '.join(brief(length) for length in iterations)}; "
            f"p95 {brief(percentile(switches, 95))}.",
        )
    ]


def hand_overs(giver: Sequence[float], taker: tuple[Sequence[float], Sequence[float]]) -> list[float]:
    """Return how long each hand-over took from the session that passed the boundaries *giver* to *taker*.

    *taker* holds the times of its own boundaries and of the operations after them. An operation that waited got the
    device at the giver's latest boundary, unless the giver passed none while it waited: then it waited for the machine.
    """
    durations = []
    for boundary, operation in zip(*taker, strict=True):
        latest = bisect_left(giver, operation) - 1
        if operation - boundary > _WAITED and latest >= 0 and giver[latest] > boundary:
            durations.append(operation - giver[latest])
    return durations
