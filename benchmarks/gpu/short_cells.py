"""Short cells in one notebook while another trains: in sessions, and in two processes that the driver shares."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Notebook, Route
from benchmarks.stack.results import BenchmarkFailed, Result, Target, brief, percentile
from benchmarks.stack.servers import StockServer

_TRAIN = """
training, iterations, end = Training("resnet50", 32), 0, time.monotonic() + {seconds}
while time.monotonic() < end:
    iterations += bool(training.iterate().item())
print(json.dumps(iterations / {seconds}))
"""
#: little work, and what a person would look at
_SHORT = """
n = 256 if small else 2048
x = torch.randn(n, n, device=device)
print(json.dumps((x @ x).square().mean().item()))
"""


async def measure(bench: Bench) -> None:
    """Run a short cell every 0.2 s, and see how long each takes, and what the training reaches meanwhile."""
    seconds = bench.seconds(60)
    with bench.stack("ada", "grace", groups={"lab": ["ada", "grace"]}) as stack:
        shared, rate = await _cells(bench, "in sessions", sessions(stack), seconds)
    with StockServer() as server:
        apart, rate_apart = await _cells(bench, "in processes", processes(server, 2), seconds)
    how = f"In sessions: {_figures(shared, rate)}; in processes: {_figures(apart, rate_apart)}."
    ratios = {f"p{part}": percentile(shared, part) / percentile(apart, part) for part in (50, 95)}
    bench.add(
        *(
            Result(metric=metric, value=value, unit="ratio", target=Target("<=", 2.0), how=how)
            for metric, value in ratios.items()
        )
    )


def _figures(took: list[float], rate: float) -> str:
    p50, p95 = brief(percentile(took, 50)), brief(percentile(took, 95))
    return f"{len(took)} cells, p50 {p50}, p95 {p95}, beside {rate:.3g} iterations/s"


async def _cells(bench: Bench, where: str, routes: list[Route], seconds: float) -> tuple[list[float], float]:
    """Return the seconds that each short cell took, and the training's rate."""
    async with AsyncExitStack() as contexts:
        trainer, other = await bench.open(contexts, routes)
        await other.value(_SHORT)
        bench.say(f"short cells beside a training {where}")
        training = asyncio.create_task(trainer.value(_TRAIN.format(seconds=seconds)))
        await asyncio.sleep(seconds / 5)
        took = await _until_done(training, other)
        return took, await training


async def _until_done(training: asyncio.Task[float], other: Notebook) -> list[float]:
    took = []
    while not training.done():
        begun = time.monotonic()
        await other.value(_SHORT)
        took.append(time.monotonic() - begun)
        await asyncio.sleep(0.2)
    if not took:
        raise BenchmarkFailed("the training was over before a short cell ran.")
    return took


if __name__ == "__main__":
    main("short_cells", measure)
