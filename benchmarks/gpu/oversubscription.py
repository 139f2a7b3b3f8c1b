"""Two jobs that together exceed the device: both finish, and how much of the time goes into moving memory.

Each keeps 0.6 of what is served in a data set on the device, and trains on it. Processes of their own cannot do this:
the second one has no memory.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from common import GIB, Bench, main, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import BenchmarkFailed, Result, Target, brief
from sharedkernel.units import format_bytes

#: part of the device's memory that each job keeps
_PART = 0.6
_NUM_PIECES = 16
_MAKE = """
pieces = [torch.full(({floats},), float(number), device=device) for number in range({pieces})]
training = Training("mlp", 64)
def work(passes):
    begun = time.monotonic()
    for number in range(passes):
        piece = pieces[number % len(pieces)]
        training.inputs = piece[: training.inputs.numel()].view_as(training.inputs)
        loss = training.iterate().item()
    whole = all(piece[0].item() == piece[-1].item() == number for number, piece in enumerate(pieces))
    return [time.monotonic() - begun, whole and loss == loss]
"""


async def measure(bench: Bench) -> None:
    """See how many passes a job makes alone; then let both make as many at once."""
    # on a large card a part of it is served: else most of the time would go into filling it
    capacity = min(bench.gpu.facts.total_bytes, 12 * GIB)
    arguments = ["--memory-quantum", "4s", "--reserve", str(capacity // 16)]
    seconds = 8.0 if bench.software else bench.seconds(80)
    users = ("ada", "grace")
    with bench.stack(*users, groups={"lab": users}, capacity=str(capacity), arguments=arguments) as stack:
        async with AsyncExitStack() as contexts:
            notebooks = await bench.open(contexts, sessions(stack))
            size = int(_PART * capacity)
            code = _MAKE.format(floats=size // _NUM_PIECES // 4, pieces=_NUM_PIECES)
            passes = await _calibrate(bench, notebooks[0], code, seconds)
            bench.say(f"two jobs of {format_bytes(size)} each, {passes} passes")
            begun = time.monotonic()
            both = [_job(notebook, "" if notebook is notebooks[0] else code, passes) for notebook in notebooks]
            outcomes = await asyncio.gather(*both)
            took = time.monotonic() - begun
            entries = (await asyncio.to_thread(stack.status)).sessions
    if not all(is_whole for _, is_whole in outcomes):
        raise BenchmarkFailed("the data of a job are not what they were.")
    moves = sum(entry.offloads + entry.restores for entry in entries)
    moving = sum(entry.offload_seconds + entry.restore_seconds for entry in entries)
    if not moves:
        raise BenchmarkFailed("nothing was moved: the jobs did not exceed the device.")
    how = f"Two jobs that keep {format_bytes(size)} each where {format_bytes(capacity)} are served both finish in "
    how += f"{brief(took)}; one alone takes {seconds:.3g} s; {moves} moves took {brief(moving)}."
    bench.add(
        Result(metric="moving", value=moving / took, unit="ratio", target=Target("<=", 0.25), how=how),
        Result(metric="to_sequential", value=took / (2 * seconds), unit="ratio", target=Target("<=", 1.5), how=how),
    )


async def _calibrate(bench: Bench, notebook: Notebook, code: str, seconds: float) -> int:
    """Make the first job; return how many passes it makes alone in so many *seconds*."""
    bench.say("one job alone")
    await notebook.run(f"{code}\nwork(4)")
    some = 50
    took, _ = await _job(notebook, "", some)
    return max(some, int(some * seconds / took))


async def _job(notebook: Notebook, code: str, passes: int) -> tuple[float, bool]:
    took, is_whole = await notebook.value(f"{code}\nprint(json.dumps(work({passes})))")
    return took, is_whole


if __name__ == "__main__":
    main("oversubscription", measure)
