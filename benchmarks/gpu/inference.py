"""42 inference sessions on one GPU: memory, latency and throughput, against 42 processes by the driver, and MPS.

Each notebook serves one request after another with a pause between them, so that not all are busy at all times.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import BenchmarkFailed, Result, Target, brief, percentile
from benchmarks.stack.servers import StockServer
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.mps import COMMAND
from sharedkernel.units import format_bytes

_SERVE = """
import random
model = models["resnet50"][0]().to(device).eval()
batch, latencies, end = torch.randn(1, 3, side, side, device=device), [], time.monotonic() + {seconds}
while time.monotonic() < end:
    begun = time.monotonic()
    with torch.inference_mode():
        model(batch).argmax().item()
    latencies.append(time.monotonic() - begun)
    time.sleep(random.uniform(0, 0.1))
print(json.dumps(latencies))
"""


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one round."""

    used_bytes: int
    latencies: list[float]
    seconds: float

    def __str__(self) -> str:
        p50, p99 = percentile(self.latencies, 50), percentile(self.latencies, 99)
        rate = len(self.latencies) / self.seconds
        return f"{format_bytes(self.used_bytes)}, p50 {brief(p50)}, p99 {brief(p99)}, {rate:.4g} requests/s"


async def measure(bench: Bench) -> None:
    """Serve by sessions, by processes, and by sessions under MPS where its daemon is to be had."""
    count = 4 if bench.software else 42
    users = [f"user{number}" for number in range(count)]
    with bench.stack(*users, groups={"lab": users}) as stack:
        async with AsyncExitStack() as contexts:
            shared = await _serve(bench, "in sessions", await bench.open(contexts, sessions(stack)))
    with StockServer() as server:
        async with AsyncExitStack() as contexts:
            apart = await _serve(bench, "in processes", await bench.open(contexts, processes(server, count)))
    under_mps = "MPS: not measured"
    try:
        if bench.quick:
            raise SharedKernelError("it takes a third of the time")
        if shutil.which(COMMAND) is None:
            raise SharedKernelError(f"{COMMAND} is not installed here")
        arguments = ["--mps", "require", "--parallel-lanes", "4", "--lane-sharing", "all"]
        with bench.stack(*users, arguments=arguments) as stack:
            async with AsyncExitStack() as contexts:
                notebooks = await bench.open(contexts, sessions(stack))
                under_mps = f"sessions under MPS: {await _serve(bench, 'under MPS', notebooks)}"
    except BenchmarkFailed:
        raise
    except SharedKernelError as error:
        under_mps = f"MPS: not measured ({str(error).splitlines()[-1].strip()})"
    how = f"{count} x ResNet-50, one image a request. Sessions: {shared}; processes: {apart}; {under_mps}."
    ratios = {
        "memory": (shared.used_bytes / apart.used_bytes, Target("<=", 1.0)),
        "p99_latency": (percentile(shared.latencies, 99) / percentile(apart.latencies, 99), Target("<=", 1.0)),
        "throughput": (len(shared.latencies) / len(apart.latencies), Target(">=", 1.0)),
    }
    bench.add(
        *(
            Result(metric=metric, value=value, unit="ratio", target=target, how=how)
            for metric, (value, target) in ratios.items()
        )
    )


async def _serve(bench: Bench, where: str, notebooks: list[Notebook]) -> Served:
    bench.say(f"{len(notebooks)} servers {where}")
    seconds = bench.seconds(60)
    cells = asyncio.gather(*(notebook.value(_SERVE.format(seconds=seconds)) for notebook in notebooks))
    most = 0
    while not cells.done():
        most = max(most, bench.used_bytes())
        await asyncio.sleep(0.1)
    return Served(most, [latency for latencies in await cells for latency in latencies], seconds)


if __name__ == "__main__":
    main("inference", measure)
