"""What the way to the kernel costs each cell: `1+1`, from sending it until its reply and "idle" are there."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack

from sharedkernel.bench.stack.client import Notebook, open_notebook
from sharedkernel.bench.stack.results import Conditions, Result, Target, brief, median_ratio, percentile
from sharedkernel.bench.stack.servers import StockServer, gateway_route
from sharedkernel.local_stack import LocalStack

_CELL = "1+1"
#: cells in a block: enough for a 99th percentile that is not the slowest one
_BLOCK = 200
#: cells before it counts
_WARM_UP = 50


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `roundtrip`."""
    with LocalStack(**conditions.stack_options) as stack, StockServer(stack) as server:
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
    for name, bound, way in (
        ("gateway", 1.3, "straight through the gateway"),
        ("relay", 1.8, "through server, relay and gateway"),
    ):
        for percent, values in (("p50", p50s), ("p99", p99s)):
            stock, shared = (brief(statistics.median(values[side])) for side in ("stock", name))
            results.append(
                Result(
                    metric=f"{name}_{percent}",
                    value=median_ratio(values[name], values["stock"]),
                    unit="ratio",
                    target=Target("<=", bound),
                    how=f"{percent} of `{_CELL}` from sending it to its reply and idle: {stock} for a stock kernel "
                    f"behind a stock Jupyter server, {shared} {way}; medians, and the median ratio, of {blocks} "
                    f"blocks of {_BLOCK} cells by each way in turn.",
                )
            )
    return results


async def _time_cells(notebooks: dict[str, Notebook], count: int) -> dict[str, list[float]]:
    """Return the seconds of *count* cells in each notebook, taken in turn so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in notebooks}
    for _ in range(count):
        for name, notebook in notebooks.items():
            seconds[name].append((await notebook.execute(_CELL)).seconds)
    return seconds
