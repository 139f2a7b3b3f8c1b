"""Two trainings on one GPU: shared, one after the other, and side by side by the driver's time slices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from common import Bench, main, open_prepared, processes, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import Result, Target
from benchmarks.stack.servers import StockServer

_MODELS = (("resnet50", 32), ("gpt", 16))


async def measure(bench: Bench) -> None:
    """Take each training's rate as a part of what it reaches alone in a stock kernel, and add the parts up."""
    seconds = bench.seconds(20)
    with StockServer() as server:
        async with AsyncExitStack() as contexts:
            notebooks = await open_prepared(contexts, processes(server, 2))
            await _make(notebooks)
            bench.say("one after the other")
            alone = [(await _rates([notebook], seconds))[0] for notebook in notebooks]
            bench.say("side by side by the driver")
            driver = await _rates(notebooks, seconds)
    users = ("ada", "grace")
    with bench.stack(*users, groups={"lab": users}) as stack:
        async with AsyncExitStack() as contexts:
            notebooks = await open_prepared(contexts, sessions(stack))
            await _make(notebooks)
            bench.say("shared")
            shared = await _rates(notebooks, seconds)
    sums = {
        name: sum(rate / best for rate, best in zip(rates, alone, strict=True))
        for name, rates in (("shared", shared), ("driver", driver))
    }
    rates_alone = " and ".join(f"{rate:.3g}" for rate in alone)
    bench.add(
        Result(
            metric="shared_to_sequential",
            value=sums["shared"],
            unit="ratio",
            target=Target(">=", 0.95),
            how=f"Sum of both trainings' rates in sessions, each against its rate alone ({rates_alone} iterations/s); "
            "one after the other makes 1.",
        ),
        Result(
            metric="shared_to_driver",
            value=sums["shared"] / sums["driver"],
            unit="ratio",
            target=Target(">=", 1.0),
            how=f"The same sum against that of two stock kernels at once, {sums['driver']:.3f}.",
        ),
    )


async def _make(notebooks: list[Notebook]) -> None:
    for notebook, (model, rows) in zip(notebooks, _MODELS, strict=True):
        await notebook.run(f"training = Training({model!r}, {rows})")


async def _rates(notebooks: list[Notebook], seconds: float) -> list[float]:
    code = f"print(json.dumps(rate(training, {seconds})))"
    return list(await asyncio.gather(*(notebook.value(code) for notebook in notebooks)))


if __name__ == "__main__":
    main("trainings", measure)
