"""What sharing costs one session that has the GPU to itself, against a stock kernel on the same GPU."""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack

from common import Bench, main, processes, sessions

from benchmarks.stack.results import Result, Target, median_ratio
from benchmarks.stack.servers import StockServer


async def measure(bench: Bench) -> None:
    """Alternate between the two, whoever is not measured standing still."""
    pairs, seconds = 3 if bench.quick else 7, bench.seconds(4)
    with bench.stack() as stack, StockServer() as server:
        async with AsyncExitStack() as contexts:
            shared, stock = await bench.open(contexts, [*sessions(stack), *processes(server, 1)])
            for model, rows in (("mlp", 256), ("resnet50", 32), ("gpt", 16)):
                rates: dict[str, list[float]] = {"shared": [], "stock": []}
                for notebook in (shared, stock):
                    await notebook.run(f"training = Training({model!r}, {rows})")
                for pair in range(pairs):
                    bench.say(f"{model}, pair {pair + 1} of {pairs}")
                    both = [("shared", shared), ("stock", stock)]
                    for name, notebook in both if pair % 2 else both[::-1]:
                        rates[name].append(await notebook.value(f"print(json.dumps(rate(training, {seconds})))"))
                for notebook in (shared, stock):
                    await notebook.run("del training\ngc.collect()\ntorch.cuda.empty_cache()")
                medians = {name: statistics.median(values) for name, values in rates.items()}
                bench.add(
                    Result(
                        metric=model,
                        value=median_ratio(rates["shared"], rates["stock"]),
                        unit="ratio",
                        target=Target(">=", 0.98),
                        how=f"Iterations per second with Adam and {rows} rows: {medians['shared']:.4g} in a session, "
                        f"{medians['stock']:.4g} in a stock kernel; medians of {pairs} alternating pairs.",
                    )
                )


if __name__ == "__main__":
    main("alone", measure)
