"""How long it takes until a notebook can compute, and how much memory an idle one holds.

The clock runs from asking for a kernel to the reply of a first cell that imports torch.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

import psutil

from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, median_ratio
from benchmarks.stack.servers import StockServer, gateway_route
from sharedkernel.local_stack import LocalStack
from sharedkernel.units import format_bytes

_FIRST_CELL = "import torch"
#: kernels in the rush
_MANY = 20
#: idle kernels whose memory is looked at, on each side
_IDLE = 4
#: seconds left to the servers to be done with one kernel's end before the next start is timed
_PAUSE = 0.5


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `start`."""
    with LocalStack(**conditions.stack_options) as stack, StockServer(stack) as server:
        return asyncio.run(_measure(conditions, stack, server))


async def _measure(conditions: Conditions, stack: LocalStack, server: StockServer) -> list[Result]:
    gateway = gateway_route(stack)
    return [
        *await _one_by_one(conditions, server.stock, gateway, server.relay),
        await _at_once(conditions, server.stock, gateway),
        await _session_memory(conditions, server.stock, gateway),
        await _relay_memory(conditions, server),
    ]


# --- time -------------------------------------------------------------------------------------------------------------


async def _one_by_one(conditions: Conditions, stock: Route, gateway: Route, relay: Route) -> list[Result]:
    runs = conditions.effort.runs(7)
    routes = (stock, gateway, relay)
    seconds: dict[Route, list[float]] = {route: [] for route in routes}
    for turn in range(runs):
        conditions.say(f"one start after the other, {turn + 1} of {runs}")
        for route in routes:
            async with AsyncExitStack() as notebooks:
                seconds[route].append(await _time_start(route, notebooks))
            await asyncio.sleep(_PAUSE)
    medians = {route: brief(statistics.median(values)) for route, values in seconds.items()}
    return [
        Result(
            metric=metric,
            value=median_ratio(seconds[stock], seconds[route]),
            unit="ratio",
            target=Target(">=", bound),
            how=f"From asking for a kernel to the reply of a cell that imports torch: {medians[stock]} for a stock "
            f"kernel of a stock Jupyter server, {medians[route]} {way}; medians, and the median ratio, of {runs} "
            "alternating pairs.",
        )
        for metric, route, bound, way in (
            ("cold_gateway", gateway, 5, "asked of the gateway (which keeps a spare session ready)"),
            ("cold_relay", relay, 8, "through the relay that the same server starts"),
        )
    ]


async def _at_once(conditions: Conditions, stock: Route, gateway: Route) -> Result:
    runs = conditions.effort.runs(3)
    seconds: dict[Route, list[float]] = {stock: [], gateway: []}
    for turn in range(runs):
        conditions.say(f"{_MANY} starts at once, {turn + 1} of {runs}")
        for route, values in seconds.items():
            async with AsyncExitStack() as notebooks:
                values.append(max(await asyncio.gather(*(_time_start(route, notebooks) for _ in range(_MANY)))))
            await asyncio.sleep(_PAUSE)
    medians = {route: brief(statistics.median(values)) for route, values in seconds.items()}
    return Result(
        metric="twenty_at_once",
        value=median_ratio(seconds[stock], seconds[gateway]),
        unit="ratio",
        target=Target(">=", 25),
        how=f"Until the last of {_MANY} kernels asked for at once has replied to a cell that imports torch: "
        f"{medians[stock]} for stock kernels of a stock Jupyter server, {medians[gateway]} for the gateway's sessions, "
        "some of which are spares, as many as the starts before made it keep; "
        f"medians, and the median ratio, of {runs} alternating pairs.",
    )


async def _time_start(route: Route, notebooks: AsyncExitStack) -> float:
    """Return the seconds until a new kernel has replied to its first cell; *notebooks* keeps it."""
    asked_at = time.perf_counter()
    notebook = await notebooks.enter_async_context(open_notebook(route))
    connected_at = time.perf_counter()
    reply = await notebook.execute(_FIRST_CELL)
    if reply.error is not None:
        raise BenchmarkFailed(f"`{_FIRST_CELL}` at {route.name} failed: {reply.error}")
    return connected_at - asked_at + reply.reply_seconds


# --- memory -----------------------------------------------------------------------------------------------------------


async def _session_memory(conditions: Conditions, stock: Route, gateway: Route) -> Result:
    conditions.say(f"the memory of {_IDLE} idle kernels on each side")
    means = [await _mean_private_bytes(route) for route in (stock, gateway)]
    return Result(
        metric="session_memory",
        value=means[1] / means[0],
        unit="ratio",
        target=Target("<=", 0.2),
        how=f"Memory that is a process's alone (USS), idle with torch imported, mean of {_IDLE} at a time: "
        f"{format_bytes(means[0])} for a stock kernel, {format_bytes(means[1])} for a session.",
    )


async def _mean_private_bytes(route: Route) -> float:
    async with AsyncExitStack() as stack:
        notebooks = [await stack.enter_async_context(open_notebook(route)) for _ in range(_IDLE)]
        pids = [await _import_torch(notebook) for notebook in notebooks]
        return statistics.mean(_private_bytes(psutil.Process(pid)) for pid in pids)


async def _import_torch(notebook: Notebook) -> int:
    """Run the first cell, and return the kernel's process id."""
    pid: int = await notebook.value(f"{_FIRST_CELL}\nimport os\nprint(os.getpid())")
    return pid


async def _relay_memory(conditions: Conditions, server: StockServer) -> Result:
    conditions.say("the memory of a relay")
    async with AsyncExitStack() as stack:
        for _ in range(_IDLE):
            await _import_torch(await stack.enter_async_context(open_notebook(server.relay)))
        relays = [process for process in server.processes() if "sharedkernel.relay" in process.cmdline()]
        if len(relays) != _IDLE:
            raise BenchmarkFailed(f"{_IDLE} notebooks have {len(relays)} relays among the server's processes.")
        mean = statistics.mean(_private_bytes(process) for process in relays)
    return Result(
        metric="relay_memory_bytes",
        value=mean,
        unit="bytes",
        target=Target("<=", 40_000_000),
        how=f"Memory that is a relay process's alone (USS), its notebook idle, mean of {_IDLE} at a time.",
    )


def _private_bytes(process: psutil.Process) -> int:
    uss: int = process.memory_full_info().uss
    return uss
