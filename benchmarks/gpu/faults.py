"""An illegal memory access in one session leaves the others' losses bit-identical."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from common import Bench, main, sessions

from benchmarks.stack.results import BenchmarkFailed, Result, Target

#: deterministic, so that two runs are comparable bit by bit
_TRAIN = """
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
training = Training("mlp", 256)
losses, end = [], time.monotonic() + {seconds}
while time.monotonic() < end:
    losses.append(training.iterate().item().hex())
print(json.dumps(losses))
"""
#: writes far outside of what is mapped
_COMPILE = """
torch.zeros(1, device=device)
kernel = torch.cuda._compile_kernel('extern "C" __global__ void wild() { *(int *)8 = 1; }', "wild")
"""
_FAULT = """
kernel((1, 1, 1), (1, 1, 1), ())
torch.cuda.synchronize()
"""


async def measure(bench: Bench) -> None:
    """Train undisturbed, then beside a session that fails again and again."""
    train = _TRAIN.format(seconds=bench.seconds(20))
    with bench.stack("ada", "grace", groups={"lab": ["ada", "grace"]}) as stack:
        async with AsyncExitStack() as contexts:
            good, bad = await bench.open(contexts, sessions(stack))
            bench.say("undisturbed")
            expected = await good.value(train)
            bench.say("beside a session that fails")
            await bad.run(_COMPILE)
            cell = asyncio.create_task(good.value(train))
            await asyncio.sleep(1)
            reply = await bad.execute(_FAULT)
            still_trains = not cell.done()
            if reply.error is None or "illegal memory access" not in reply.error:
                cell.cancel()
                raise BenchmarkFailed(f"the session that should fail did not: {reply.error or 'no error'}")
            losses = await cell
    if not still_trains:
        raise BenchmarkFailed("the training was over before the other session failed.")
    iterations = min(len(expected), len(losses))
    different = sum(one != other for one, other in zip(expected, losses, strict=False))
    bench.add(
        Result(
            metric="different_losses",
            value=different / iterations,
            unit="ratio",
            target=Target("<=", 0.0),
            how=f"Of {iterations} losses of a deterministic training, {different} differ from those of an undisturbed "
            "run after another session wrote to an unmapped address meanwhile.",
        ),
        exact=True,
    )


if __name__ == "__main__":
    main("faults", measure)
