"""What the way to the kernel costs each cell: `1+1`, from sending it until its reply and "idle" are there."""

from __future__ import annotations

import asyncio
import random
import statistics
from contextlib import AsyncExitStack

from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.results import Conditions, Result, Target, brief, median_ratio, percentile
from benchmarks.stack.servers import StockServer, gateway_route
from sharedkernel.local_stack import LocalStack

_CELL = "1+1"
#: cells in a block: enough for a 99th percentile that is not the slowest one
_BLOCK = 200
#: cells before it counts
_WARM_UP = 50
#: kernels that a stock server has besides, and sessions that the gateway has
_IDLE_KERNELS, _IDLE_SESSIONS = 20, 120


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `roundtrip`."""
    most = 2 * _IDLE_SESSIONS
    stack = LocalStack(
        **conditions.stack_options,
        quotas={"default": {"sessions": most}},
        config=f"c.SharedKernelGateway.max_websockets = {most}",
    )
    with stack, StockServer(stack) as server:
        return asyncio.run(_measure(conditions, stack, server))


async def _measure(conditions: Conditions, stack: LocalStack, server: StockServer) -> list[Result]:
    routes = {"stock": server.stock, "gateway": gateway_route(stack), "relay": server.relay}
    blocks = conditions.effort.runs(10)
    p50s: dict[str, list[float]] = {name: [] for name in routes}
    p99s: dict[str, list[float]] = {name: [] for name in routes}
    async with AsyncExitStack() as contexts:
        notebooks = {name: await contexts.enter_async_context(open_notebook(route)) for name, route in routes.items()}
        await _time_cells(notebooks, _WARM_UP)
        for block in range(blocks):
            conditions.say(f"`{_CELL}` {_BLOCK} times by each way, {block + 1} of {blocks}")
            for name, seconds in (await _time_cells(notebooks, _BLOCK)).items():
                p50s[name].append(percentile(seconds, 50))
                p99s[name].append(percentile(seconds, 99))
    results = []
    for name, percent, bound, way in (
        ("gateway", "p50", 0.75, "straight through the gateway"),
        ("gateway", "p99", 1.0, "straight through the gateway"),
        ("relay", "p50", 1.25, "through server, relay and gateway"),
        ("relay", "p99", 1.8, "through server, relay and gateway"),
    ):
        values = {"p50": p50s, "p99": p99s}[percent]
        stock, shared = (brief(statistics.median(values[side])) for side in ("stock", name))
        results.append(
            Result(
                metric=f"{name}_{percent}",
                value=median_ratio(values[name], values["stock"]),
                unit="ratio",
                target=Target("<=", bound),
                how=f"{percent} of `{_CELL}` from sending it to its reply and idle: {stock} for a stock kernel "
                f"behind a stock Jupyter server, {shared} {way}; medians, and the median ratio, of {blocks} "
                f"blocks of {_BLOCK} cells by each way in turn, in an order drawn anew each time.",
            )
        )
    return [*results, await _beside_idle_ones(conditions, server.stock, gateway_route(stack))]


async def _beside_idle_ones(conditions: Conditions, stock: Route, gateway: Route) -> Result:
    """Measure cells of one notebook on each side while many others have a kernel and run nothing."""
    blocks = conditions.effort.runs(5)
    p50s: dict[str, list[float]] = {"stock": [], "gateway": []}
    async with AsyncExitStack() as contexts:
        for route, count in ((stock, _IDLE_KERNELS), (gateway, _IDLE_SESSIONS)):
            conditions.say(f"starting {count} idle kernels at {route.name}")
            for _ in range(count):
                await (await contexts.enter_async_context(open_notebook(route))).execute("pass")
        notebooks = {
            name: await contexts.enter_async_context(open_notebook(route))
            for name, route in (("stock", stock), ("gateway", gateway))
        }
        await _time_cells(notebooks, _WARM_UP)
        for block in range(blocks):
            conditions.say(f"`{_CELL}` {_BLOCK} times beside idle kernels, {block + 1} of {blocks}")
            for name, seconds in (await _time_cells(notebooks, _BLOCK)).items():
                p50s[name].append(percentile(seconds, 50))
    stock_p50, shared_p50 = (brief(statistics.median(p50s[side])) for side in ("stock", "gateway"))
    return Result(
        metric="idle120_p50",
        value=median_ratio(p50s["gateway"], p50s["stock"]),
        unit="ratio",
        target=Target("<=", 0.8),
        how=f"p50 of `{_CELL}` beside idle kernels: {stock_p50} for a stock kernel beside {_IDLE_KERNELS} others of "
        f"its Jupyter server, {shared_p50} straight through the gateway beside {_IDLE_SESSIONS} sessions; medians, and "
        f"the median ratio, of {blocks} blocks of {_BLOCK} cells by each way in turn.",
    )


async def _time_cells(notebooks: dict[str, Notebook], count: int) -> dict[str, list[float]]:
    """Return the seconds of *count* cells in each notebook, taken in turn so that all see the same machine.

    Each round has an order of its own, drawn by chance: what a cell leaves its processes to do afterwards would else
    always fall into the same other notebook's cell, with the same delay.
    """
    seconds: dict[str, list[float]] = {name: [] for name in notebooks}
    chance = random.Random(count)
    for _ in range(count):
        for name in chance.sample(list(notebooks), len(notebooks)):
            seconds[name].append((await notebooks[name].execute(_CELL)).seconds)
    return seconds
