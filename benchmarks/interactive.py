"""How long a short cell waits for the device while two others train without end.

The cell itself takes the time: before its first device operation and right after it. What the longest iteration of the
trainings takes alone is taken off: an iteration is not cut short for a colleague.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import Conditions, Result, Target, brief, percentile
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import ENDLESS, in_threads, prepare, until_under_way
from sharedkernel.local_stack import LocalStack

_TRAINERS = ("ada", "grace")
_VISITOR = "hedy"
#: iterations of the two trainings, and passes of the two loops without boundaries, in seconds
_ITERATIONS = (0.02, 0.1)
_PASSES = (0.005, 0.005)
#: shortest and longest pause between two short cells, in seconds
_PAUSES = (0.05, 0.4)

_PREPARE_SHORT_CELL = """
import json, time, torch
weights = torch.randn(64, 64) / 8
state = torch.randn(64, 64)
"""
_SHORT_CELL = """
asked = time.monotonic()
state.add_(0)
began = time.monotonic()
while time.monotonic() < began + 0.010:
    state = torch.tanh(state @ weights)
print(json.dumps(began - asked))
"""

#: the loop, once in the cell's own source and once in a module's, out of sight of whatever rewrites cells
_PREPARE_LOOPS = """
import json, time, types
import torch

weights = torch.randn(256, 256) / 16
endless = types.ModuleType("endless")
exec(compile('''
import torch
def run(state, weights):
    while True:
        state = torch.tanh(state @ weights)
''', "endless.py", "exec"), endless.__dict__)

def time_passes(rows):
    state, durations = torch.randn(rows, 256), []
    for _ in range(10):
        begun = time.perf_counter()
        state = torch.tanh(state @ weights)
        durations.append(time.perf_counter() - begun)
    return min(durations)  # other work on the machine only ever adds

rows = 256
for _ in range(6):
    rows = max(1, round(rows * {seconds} / time_passes(rows)))
state = torch.randn(rows, 256)
print(json.dumps(time_passes(rows)))
"""
_LOOP_IN_CELL = """
while True:
    state = torch.tanh(state @ weights)
"""
_LOOP_IN_MODULE = "endless.run(state, weights)"


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `interactive`."""
    with LocalStack(users=[*_TRAINERS, _VISITOR], **conditions.stack_options) as stack:
        return asyncio.run(_measure(conditions, stack))


async def _measure(conditions: Conditions, stack: LocalStack) -> list[Result]:
    async with AsyncExitStack() as contexts:
        *trainers, visitor = [
            await contexts.enter_async_context(open_notebook(gateway_route(stack, user)))
            for user in (*_TRAINERS, _VISITOR)
        ]
        await visitor.run(_PREPARE_SHORT_CELL)
        conditions.say("sizing the trainings")
        iterations = [
            await prepare(notebook, "cnn", iteration_seconds=seconds)
            for notebook, seconds in zip(trainers, _ITERATIONS, strict=True)
        ]
        ada, grace = trainers
        in_cells = [ada.endless(ENDLESS), grace.endless(ENDLESS)]
        waits = await _visit(conditions, stack, visitor, in_cells, beside="two trainings")
        in_thread = [in_threads(ada, 1), grace.endless(ENDLESS)]
        thread_waits = await _visit(conditions, stack, visitor, in_thread, beside="two trainings, one in a thread")
        passes = [
            await notebook.value(_PREPARE_LOOPS.format(seconds=seconds))
            for notebook, seconds in zip(trainers, _PASSES, strict=True)
        ]
        loops = [ada.endless(_LOOP_IN_CELL), grace.endless(_LOOP_IN_MODULE)]
        loop_waits = await _visit(conditions, stack, visitor, loops, beside="two loops without boundaries")
    return [
        _result("wait_excess_seconds", waits, iterations, "two endless trainings with iterations"),
        _result("wait_excess_thread_seconds", thread_waits, iterations, "both, the first one in a thread,"),
        _result(
            "wait_excess_no_boundary_seconds",
            loop_waits,
            passes,
            "two endless loops over tensor operations without any boundary, one of them in a module, with passes",
        ),
    ]


async def _visit(
    conditions: Conditions,
    stack: LocalStack,
    visitor: Notebook,
    trainings: Sequence[AbstractAsyncContextManager[object]],
    *,
    beside: str,
) -> list[float]:
    """Run short cells with pauses inside *trainings*; return how long each waited."""
    count = conditions.effort.runs(80)
    pauses = random.Random(0)
    async with AsyncExitStack() as contexts:
        for training in trainings:
            await contexts.enter_async_context(training)
        await until_under_way(stack, _TRAINERS)
        waits = []
        for number in range(count):
            conditions.say(f"short cells beside {beside}, {number + 1} of {count}")
            await asyncio.sleep(pauses.uniform(*_PAUSES))
            waits.append(await visitor.value(_SHORT_CELL))
        return waits


def _result(metric: str, waits: Sequence[float], lengths: Sequence[float], beside: str) -> Result:
    p95, longest = percentile(waits, 95), max(lengths)
    return Result(
        metric=metric,
        value=p95 - longest,
        unit="seconds",
        target=Target("<=", 0.05),
        how=f"p95 of the wait of {len(waits)} short cells before their first device operation ({brief(p95)}; median "
        f"{brief(statistics.median(waits))}, longest {brief(max(waits))}) minus the longest iteration or pass, beside "
        f"{beside} of {' and '.join(brief(length) for length in lengths)}, each measured alone and least disturbed.",
    )
