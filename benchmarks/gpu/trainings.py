"""Two and four trainings on one GPU: shared, one after the other, and side by side by the driver's time slices.

Sessions take turns, and then compute in two lanes at once, by the driver's time slices and by MPS where its daemon is.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import Result, Target
from benchmarks.stack.servers import StockServer
from sharedkernel.executor.devices.cuda.mps import COMMAND

_MODELS = (("resnet50", 32), ("gpt", 16)) * 2
_USERS = ("ada", "grace", "alan", "edsger")
#: arguments of executors whose sessions compute in two lanes at once
_LANES = ("--parallel-lanes", "2", "--lane-sharing", "all")


class Sums:
    """Trainings' rates, each as a part of what it reaches alone in a stock kernel, added up: one after the other is 1.

    Parameters
    ----------
    bench
        The run.
    alone
        Iterations per second of each model alone.
    """

    def __init__(self, bench: Bench, alone: Sequence[float]) -> None:
        self._bench = bench
        self._alone = alone
        #: the sum where the driver shares the device, by the number of trainings
        self._driver: dict[int, float] = {}

    async def measure(self, notebooks: Sequence[Notebook], how: str) -> dict[int, float]:
        """Return the sums of two and of four trainings."""
        sums = {}
        for count in (2, 4):
            self._bench.say(f"{count} trainings {how}")
            rates = await _rates(notebooks[:count], self._bench.seconds(20))
            sums[count] = sum(rate / self._alone[number % 2] for number, rate in enumerate(rates))
        return sums

    async def measure_driver(self, notebooks: Sequence[Notebook]) -> None:
        """Take the sums of what stock kernels reach."""
        self._driver = await self.measure(notebooks, "side by side by the driver")

    async def measure_shared(self, name: str, how: str, arguments: Sequence[str] = ()) -> None:
        """Measure in sessions of a stack of its own, and note the results by *name*."""
        with self._bench.stack(*_USERS, groups={"lab": _USERS}, arguments=arguments) as stack:
            async with AsyncExitStack() as contexts:
                notebooks = await self._bench.open(contexts, sessions(stack))
                await _make(notebooks)
                sums = await self.measure(notebooks, how)
        for count, total in sums.items():
            prefix = name if count == 2 else f"four_{name}"
            rates_alone = " and ".join(f"{rate:.3g}" for rate in self._alone)
            self._bench.add(
                Result(
                    metric=f"{prefix}_to_sequential",
                    value=total,
                    unit="ratio",
                    target=Target(">=", 0.95),
                    how=f"Sum of {count} trainings' rates {how}, each against its rate alone ({rates_alone} "
                    "iterations/s); one after the other makes 1.",
                ),
                Result(
                    metric=f"{prefix}_to_driver",
                    value=total / self._driver[count],
                    unit="ratio",
                    target=Target(">=", 1.0),
                    how=f"The same sum against that of {count} stock kernels at once, {self._driver[count]:.3f}.",
                ),
            )


async def measure(bench: Bench) -> None:
    """Measure alone, by the driver, and shared in each way."""
    with StockServer() as server:
        async with AsyncExitStack() as contexts:
            notebooks = await bench.open(contexts, processes(server, len(_MODELS)))
            await _make(notebooks)
            bench.say("one after the other")
            alone = [(await _rates([notebook], bench.seconds(20)))[0] for notebook in notebooks[:2]]
            sums = Sums(bench, alone)
            await sums.measure_driver(notebooks)
    await sums.measure_shared("shared", "in sessions")
    await sums.measure_shared("parallel", "in sessions, two at a time", _LANES)
    if shutil.which(COMMAND) is None:
        bench.skip("mps", f"{COMMAND} is not installed here")
    else:
        await sums.measure_shared("mps", "in sessions, two at a time under MPS", ["--mps", "require", *_LANES])


async def _make(notebooks: Sequence[Notebook]) -> None:
    for notebook, (model, rows) in zip(notebooks, _MODELS, strict=True):
        await notebook.run(f"training = Training({model!r}, {rows})")


async def _rates(notebooks: Sequence[Notebook], seconds: float) -> list[float]:
    code = f"print(json.dumps(rate(training, {seconds})))"
    return list(await asyncio.gather(*(notebook.value(code) for notebook in notebooks)))


if __name__ == "__main__":
    main("trainings", measure)
