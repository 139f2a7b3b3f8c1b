"""Device memory of N copies of a training: in sessions that share a lane, and in processes of their own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import Result, Target
from benchmarks.stack.servers import StockServer
from sharedkernel.units import format_bytes


async def measure(bench: Bench) -> None:
    """Let all copies train at once, and look at what the device has in use."""
    copies = 2 if bench.quick else 4
    for model, rows in (("resnet50", 64), ("bert", 64), ("gpt", 64)):
        users = [f"user{number}" for number in range(copies)]
        groups = {"lab": users}
        before = bench.used_bytes()
        with bench.stack(*users, groups=groups) as stack:
            async with AsyncExitStack() as contexts:
                bench.say(f"{copies} x {model} in sessions")
                notebooks = await bench.open(contexts, sessions(stack))
                shared, most_shared = await _used(bench, notebooks, model, rows, before)
                told = (await asyncio.to_thread(stack.status)).sessions
        expected = sum(entry.persistent_bytes + entry.framework_bytes for entry in told)
        expected += max(entry.iteration_bytes or 0 for entry in told)
        with StockServer() as server:
            async with AsyncExitStack() as contexts:
                bench.say(f"{copies} x {model} in processes")
                notebooks = await bench.open(contexts, processes(server, copies))
                apart, most_apart = await _used(bench, notebooks, model, rows, before)
        bench.add(
            Result(
                metric=model,
                value=shared / expected,
                unit="ratio",
                target=Target("<=", 1.05),
                how=f"Memory in use with {copies} copies (Adam, {rows} rows) that train in sessions: "
                f"{format_bytes(shared)} (median; {format_bytes(most_shared)} at most, while nothing is measured yet), "
                f"where ΣP + ΣF + max E as measured is {format_bytes(expected)}; in processes of their own "
                f"{format_bytes(apart)} ({format_bytes(most_apart)} at most), {apart / shared:.2f} times as much.",
            )
        )


async def _used(bench: Bench, notebooks: list[Notebook], model: str, rows: int, before: int) -> tuple[int, int]:
    """Train in all notebooks at once; return the median and the most of what the device had in use beyond *before*."""
    code = f"training = Training({model!r}, {rows})\nprint(json.dumps(rate(training, {bench.seconds(20)})))"
    cells = asyncio.gather(*(notebook.value(code) for notebook in notebooks))
    used = []
    while not cells.done():
        used.append(bench.used_bytes() - before)
        await asyncio.sleep(0.05)
    await cells
    return sorted(used)[len(used) // 2], max(used)


if __name__ == "__main__":
    main("memory", measure)
