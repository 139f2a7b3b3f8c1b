"""An illegal memory access in one session leaves the others' losses bit-identical."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from common import Bench, main, open_prepared, sessions

from sharedkernel.bench.stack.results import BenchmarkFailed, Result, Target

#: deterministic, so that two runs are comparable bit by bit
_TRAIN = """
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
training = Training("mlp", 256)
losses = [training.iterate().item().hex() for _ in range({iterations})]
print(json.dumps(losses))
"""
#: writes far outside of what is mapped
_FAULT = """
torch.zeros(1, device=device)
kernel = torch.cuda._compile_kernel('extern "C" __global__ void wild() { *(int *)8 = 1; }', "wild")
kernel((1, 1, 1), (1, 1, 1), ())
torch.cuda.synchronize()
"""


async def measure(bench: Bench) -> list[Result]:
    """Train undisturbed, then beside a session that fails again and again."""
    iterations = 500 if bench.quick else 3000
    train = _TRAIN.format(iterations=iterations)
    with bench.stack("ada", "grace", groups={"lab": ["ada", "grace"]}) as stack:
        async with AsyncExitStack() as contexts:
            good, bad = await open_prepared(contexts, sessions(stack))
            bench.say("undisturbed")
            expected = await good.value(train)
            bench.say("beside a session that fails")
            cell = asyncio.create_task(good.value(train))
            reply = await bad.execute(_FAULT)
            if reply.error is None or "illegal memory access" not in reply.error:
                cell.cancel()
                raise BenchmarkFailed(f"the session that should fail did not: {reply.error or 'no error'}")
            losses = await cell
    different = sum(one != other for one, other in zip(expected, losses, strict=True))
    return [
        Result(
            metric="different_losses",
            value=different / iterations,
            unit="ratio",
            target=Target("<=", 0.0),
            how=f"Of {iterations} losses of a deterministic training, {different} differ from those of an undisturbed "
            "run after another session wrote to an unmapped address meanwhile.",
        )
    ]


if __name__ == "__main__":
    main("faults", measure)
