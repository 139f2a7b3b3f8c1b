"""What sharing costs code that has the device to itself, beside a stock ipykernel.

Trainings are compared by iterations per second; small operations, whose cost is mostly Python's and torch's dispatch,
by the time of a loop of them outside any training, and as `%timeit` measures a module's call.

The rate per second of processor time is told beside it: on the host device it says the same, and other work on the
machine disturbs it less.
"""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, median_ratio
from benchmarks.stack.servers import StockServer, gateway_route
from benchmarks.stack.trainings import PREPARE, Model, prepare, prepare_sized
from sharedkernel.local_stack import LocalStack

#: model and seconds of an iteration
_TRAININGS: tuple[tuple[Model, float], ...] = (("mlp", 0.001), ("cnn", 0.1))
#: length of one measurement, in seconds
_WINDOW = 1.0
#: pairs that two notebooks measure before new ones do: the same training in six plain processes, one after another,
#: differed by up to 7 %
_PAIRS_OF_NOTEBOOKS = 3

_COUNT = """
iterations, begun, processor_begun = 0, time.perf_counter(), time.process_time()
while time.perf_counter() < begun + {seconds}:
    training.iterate()
    iterations += 1
seconds, processor_seconds = time.perf_counter() - begun, time.process_time() - processor_begun
print(json.dumps([iterations / seconds, iterations / processor_seconds]))
"""


_SMALL = """
import json, statistics, time, torch
torch.manual_seed(0)
small, layer = torch.randn(8), torch.nn.Linear(8, 8)
def sums(count):
    begun = time.perf_counter()
    for _ in range(count):
        small + small
    return time.perf_counter() - begun
"""

#: cells that print the seconds of one operation, by metric, and what they do for people; each begins without a grant
_SMALL_OPERATIONS = {
    "small_operations": (
        "print(json.dumps(statistics.median(sums(1000) for _ in range({loops})) / 1000))",
        "addition of two vectors, in loops of 1,000",
    ),
    "small_operations_timeit": (
        "taken = get_ipython().run_line_magic('timeit', '-o -q -n {loops} -r 7 layer(small)')\n"
        "print(json.dumps(statistics.median(taken.timings)))",
        "call of a small linear layer, by `%timeit`",
    ),
}
#: how often loops are run in one measurement; a tenth of a second or so
_LOOPS = {"small_operations": 50, "small_operations_timeit": 2000}


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `alone`."""
    with LocalStack(**conditions.stack_options) as stack, StockServer() as server:
        return asyncio.run(_measure(conditions, stack, server))


async def _measure(conditions: Conditions, stack: LocalStack, server: StockServer) -> list[Result]:
    routes = (server.stock, gateway_route(stack))
    trainings = [
        await _compare(conditions, routes, model=model, iteration_seconds=seconds) for model, seconds in _TRAININGS
    ]
    async with open_notebook(routes[0]) as stock, open_notebook(routes[1]) as shared:
        return trainings + [await _compare_small(conditions, stock, shared, metric) for metric in _SMALL_OPERATIONS]


async def _compare_small(conditions: Conditions, stock: Notebook, shared: Notebook, metric: str) -> Result:
    code, what = _SMALL_OPERATIONS[metric]
    taken: dict[Notebook, list[float]] = {stock: [], shared: []}
    for notebook in taken:
        await notebook.run(_SMALL)
    pairs = conditions.effort.runs(21)
    for pair in range(pairs):
        conditions.say(f"small operations, pair {pair + 1} of {pairs}")
        for notebook in (stock, shared) if pair % 2 else (shared, stock):
            taken[notebook].append(await notebook.value(code.format(loops=_LOOPS[metric])))
    medians = {notebook: statistics.median(values) for notebook, values in taken.items()}
    return Result(
        metric=metric,
        value=median_ratio(taken[stock], taken[shared]),
        unit="ratio",
        target=Target(">=", 0.95),
        how=f"One {what}, outside any training: {brief(medians[stock])} in a stock kernel, {brief(medians[shared])} in "
        f"a session with nobody else on the device; medians, and the median ratio, of {pairs} alternating pairs.",
    )


async def _compare(
    conditions: Conditions, routes: tuple[Route, Route], *, model: Model, iteration_seconds: float
) -> Result:
    conditions.say(f"sizing the {model}")
    async with open_notebook(routes[0]) as notebook:
        await prepare(notebook, model, iteration_seconds=iteration_seconds)
        rows: int = await notebook.value("print(json.dumps(rows))")
    rates: tuple[list[float], list[float]] = ([], [])
    processor_rates: tuple[list[float], list[float]] = ([], [])
    pairs = conditions.effort.runs(21)
    code = _COUNT.format(seconds=_WINDOW)
    for first in range(0, pairs, _PAIRS_OF_NOTEBOOKS):
        async with open_notebook(routes[0]) as stock, open_notebook(routes[1]) as shared:
            notebooks = (stock, shared)
            for notebook in notebooks:
                await notebook.run(PREPARE)
                await prepare_sized(notebook, model, rows=rows)
            threads = await _threads(stock, shared)
            for pair in range(first, min(first + _PAIRS_OF_NOTEBOOKS, pairs)):
                conditions.say(f"{model}, pair {pair + 1} of {pairs}")
                # Each side goes first every other time: what drifts meanwhile then favours neither.
                for side in (0, 1) if pair % 2 else (1, 0):
                    rate, processor_rate = await notebooks[side].value(code)
                    rates[side].append(rate)
                    processor_rates[side].append(processor_rate)
    medians = [statistics.median(values) for values in rates]
    processor_ratio = median_ratio(processor_rates[1], processor_rates[0])
    return Result(
        metric=model,
        value=median_ratio(rates[1], rates[0]),
        unit="ratio",
        target=Target(">=", 0.98),
        how=f"Iterations per second of the same training ({rows} rows, {_counted(threads, 'torch thread')}): "
        f"{medians[0]:.4g} in a stock kernel, {medians[1]:.4g} in a session with nobody else on the device; "
        f"medians, and the median ratio, of {pairs} alternating pairs of {_WINDOW:g} s each, in new kernels after "
        f"every {_PAIRS_OF_NOTEBOOKS} (per second of processor time the ratio is {processor_ratio:.3f}).",
    )


async def _threads(*notebooks: Notebook) -> int:
    counts = {await notebook.value("print(torch.get_num_threads())") for notebook in notebooks}
    if len(counts) != 1:
        raise BenchmarkFailed(f"the two sides compute with different numbers of torch threads: {sorted(counts)}.")
    return int(counts.pop())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
