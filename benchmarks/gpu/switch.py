"""How long the GPU stands still when it changes hands at a boundary, beside a copy of the model and nvshare's quanta.

Two users train. Each notebook notes the time when all of its work before a boundary is done, and the time when the
first operation after it is; an operation that waited tells how long the hand-over took. A copy of the model to the host
and back is what a switch would cost that moved memory; nvshare's README asks for quanta of at least 10 s because of it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from common import Bench, main, sessions

from benchmarks.stack.results import BenchmarkFailed, Result, Target, brief, percentile
from benchmarks.switch import hand_overs

_TRAIN = """
training, probe = Training("resnet50", 16), torch.zeros(1, device=device)
for _ in range(5):
    training.iterate()
boundaries, operations, end = [], [], time.monotonic() + {seconds}
while time.monotonic() < end:
    torch.cuda.synchronize()
    boundaries.append(time.monotonic())
    training.optimizer.zero_grad()
    probe.add_(1)
    torch.cuda.synchronize()
    operations.append(time.monotonic())
    nn.functional.cross_entropy(training.model(training.inputs), training.labels).backward()
    training.optimizer.step()
print(json.dumps([boundaries, operations]))
"""
_COPY = """
parts = [p for g in training.optimizer.state.values() for p in g.values() if torch.is_tensor(p) and p.is_cuda]
parts += list(training.model.parameters())
begun = time.perf_counter()
for part in parts:
    part.data.cpu().to(device)
torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - begun))
"""


async def measure(bench: Bench) -> None:
    """Train on both sides and look at who waited for whom."""
    seconds = bench.seconds(60)
    with bench.stack("ada", "grace", groups={"lab": ["ada", "grace"]}) as stack:
        async with AsyncExitStack() as contexts:
            notebooks = await bench.open(contexts, sessions(stack))
            bench.say(f"two trainings for {seconds:g} s")
            code = _TRAIN.format(seconds=seconds)
            one, other = await asyncio.gather(*(notebook.value(code) for notebook in notebooks))
            copy = await notebooks[0].value(_COPY)
    switches = [*hand_overs(one[0], other), *hand_overs(other[0], one)]
    if not switches:
        raise BenchmarkFailed("the GPU never changed hands; iterations are longer than the measurement.")
    tail = percentile(switches, 99)
    bench.add(
        Result(
            metric="p50_seconds",
            value=percentile(switches, 50),
            unit="seconds",
            target=Target("<", 0.005),
            how=f"Median of {len(switches)} hand-overs between two ResNet-50 trainings, p99 {brief(tail)}; copying the "
            f"model and Adam's state to the host and back takes {brief(copy)}.",
        ),
        Result(
            metric="p99_to_copy",
            value=tail / copy,
            unit="ratio",
            target=Target("<", 1.0),
            how=f"The slowest percent of hand-overs ({brief(tail)}) against that copy ({brief(copy)}).",
        ),
    )


if __name__ == "__main__":
    main("switch", measure)
