"""What sharing costs a training that has the device to itself: iterations per second beside a stock ipykernel.

The rate per second of processor time is told beside it: on the host device it says the same, and other work on the
machine disturbs it less.
"""

from __future__ import annotations

import asyncio
import statistics

from sharedkernel.bench.client import Notebook, open_notebook
from sharedkernel.bench.results import BenchmarkFailed, Conditions, Result, Target, median_ratio
from sharedkernel.bench.servers import StockServer, gateway_route
from sharedkernel.bench.trainings import PREPARE, Model, prepare, prepare_sized
from sharedkernel.local_stack import LocalStack

#: model and seconds of an iteration
_TRAININGS: tuple[tuple[Model, float], ...] = (("mlp", 0.001), ("cnn", 0.1))
#: length of one measurement, in seconds
_WINDOW = 1.0

_COUNT = """
iterations, begun, processor_begun = 0, time.perf_counter(), time.process_time()
while time.perf_counter() < begun + {seconds}:
    training.iterate()
    iterations += 1
seconds, processor_seconds = time.perf_counter() - begun, time.process_time() - processor_begun
print(json.dumps([iterations / seconds, iterations / processor_seconds]))
"""


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `alone`."""
    with LocalStack(**conditions.stack_options) as stack, StockServer() as server:
        return asyncio.run(_measure(conditions, stack, server))


async def _measure(conditions: Conditions, stack: LocalStack, server: StockServer) -> list[Result]:
    async with open_notebook(server.stock) as stock, open_notebook(gateway_route(stack)) as shared:
        return [
            await _compare(conditions, stock, shared, model=model, iteration_seconds=seconds)
            for model, seconds in _TRAININGS
        ]


async def _compare(
    conditions: Conditions, stock: Notebook, shared: Notebook, *, model: Model, iteration_seconds: float
) -> Result:
    conditions.say(f"sizing the {model}")
    await prepare(stock, model, iteration_seconds=iteration_seconds)
    rows: int = await stock.value("print(json.dumps(rows))")
    await shared.run(PREPARE)
    await prepare_sized(shared, model, rows=rows)
    threads = await _threads(stock, shared)
    rates: dict[Notebook, list[float]] = {stock: [], shared: []}
    processor_rates: dict[Notebook, list[float]] = {stock: [], shared: []}
    pairs = conditions.effort.runs(21)
    code = _COUNT.format(seconds=_WINDOW)
    for pair in range(pairs):
        conditions.say(f"{model}, pair {pair + 1} of {pairs}")
        # Each side goes first every other time: what drifts meanwhile then favours neither.
        for notebook in (stock, shared) if pair % 2 else (shared, stock):
            rate, processor_rate = await notebook.value(code)
            rates[notebook].append(rate)
            processor_rates[notebook].append(processor_rate)
    medians = {notebook: statistics.median(values) for notebook, values in rates.items()}
    processor_ratio = median_ratio(processor_rates[shared], processor_rates[stock])
    return Result(
        metric=model,
        value=median_ratio(rates[shared], rates[stock]),
        unit="ratio",
        target=Target(">=", 0.98),
        how=f"Iterations per second of the same training ({rows} rows, {_counted(threads, 'torch thread')}): "
        f"{medians[stock]:.4g} in a stock kernel, {medians[shared]:.4g} in a session with nobody else on the device; "
        f"medians, and the median ratio, of {pairs} alternating pairs of {_WINDOW:g} s each (per second "
        f"of processor time the ratio is {processor_ratio:.3f}).",
    )


async def _threads(*notebooks: Notebook) -> int:
    counts = {await notebook.value("print(torch.get_num_threads())") for notebook in notebooks}
    if len(counts) != 1:
        raise BenchmarkFailed(f"the two sides compute with different numbers of torch threads: {sorted(counts)}.")
    return int(counts.pop())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
