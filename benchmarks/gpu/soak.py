"""Two trainings in one lane for two minutes; then `kill -9` of one of them.

Each training checks in every iteration that an activation it keeps still has the checksum it had when it was made.
Nobody may stand still, no checksum may differ, and when the holder is killed the other goes on. With ``--threads`` each
training has threads that free tensors in reference cycles; sessions with threads of their own use no lane.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack

from common import Bench, main, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import BenchmarkFailed, Result, Target
from sharedkernel.status.document import StatusDocument

_SOAK = """
import queue
dropped = queue.Queue(maxsize=64)

def drop():
    while (tensors := dropped.get()) is not None:
        tensors.append(tensors)  # only the garbage collector frees them, in this thread
        del tensors
        gc.collect(0)

threads = [threading.Thread(target=drop, daemon=True) for _ in range({threads})]
for thread in threads:
    thread.start()
training, wrong, iterations, longest = Training("gpt", 8), 0, 0, 0.0
end = last = time.monotonic()
end += {seconds}
while time.monotonic() < end:
    training.optimizer.zero_grad()
    output = training.model(training.inputs)
    kept, checksum = output.detach().clone(), output.double().sum().item()
    nn.functional.cross_entropy(output, training.labels).backward()
    training.optimizer.step()
    if threads:
        dropped.put([torch.empty(1 << 20, device=device), output.detach() + 1])
    wrong += kept.double().sum().item() != checksum
    iterations += 1
    now = time.monotonic()
    longest, last = max(longest, now - last), now
for thread in threads:
    dropped.put(None)
for thread in threads:
    thread.join()
print(json.dumps([iterations, wrong, longest]))
"""
_ENDLESS = "training = Training('gpt', 8)\nwhile True:\n    training.iterate()"
_GO_ON = "print(json.dumps(rate(training, 2)))"


async def measure(bench: Bench) -> None:
    """Soak, then kill one of the two while it trains."""
    seconds = bench.seconds(120)
    with bench.stack("ada", "grace", groups={"lab": ["ada", "grace"]}, arguments=["--parallel-lanes", "1"]) as stack:
        async with AsyncExitStack() as contexts:
            notebooks = await bench.open(contexts, sessions(stack))
            bench.say(f"soaking for {seconds:g} s")
            code = _SOAK.format(seconds=seconds, threads=bench.threads)
            outcomes = await asyncio.gather(*(notebook.value(code) for notebook in notebooks))
            notes = _lane_notes(await asyncio.to_thread(stack.status))
            bench.say("killing a session that trains")
            shared = (await asyncio.to_thread(stack.status)).device.lanes_shared
            recovered = await _kill_one(*notebooks)
    if notes and not bench.threads:
        raise BenchmarkFailed(f"the trainings did not use their lane:{notes}")
    wrong = sum(outcome[1] for outcome in outcomes)
    longest = max(outcome[2] for outcome in outcomes)
    counts = " and ".join(str(outcome[0]) for outcome in outcomes)
    how = f"{counts} iterations in {seconds:g} s; lanes' bytes were{'' if shared else ' not'} shared.{notes}"
    bench.add(Result(metric="wrong_checksums", value=wrong, unit="ratio", target=Target("<=", 0), how=how), exact=True)
    bench.add(
        Result(metric="longest_iteration", value=longest, unit="seconds", target=Target("<", 10.0), how=how),
        Result(
            metric="after_kill",
            value=recovered,
            unit="seconds",
            target=Target("<", 10.0),
            how="From `kill -9` of a session in the middle of its training until the other has trained for 2 s.",
        ),
    )


def _lane_notes(status: StatusDocument) -> str:
    """Return why sessions do not use their lanes' bytes, in sentences: then the soak says nothing of lanes."""
    notes = [(session.user, session.lane_note) for session in status.sessions]
    return "".join(f" {user}: {note}" for user, note in notes if note)


async def _kill_one(victim: Notebook, survivor: Notebook) -> float:
    await survivor.run("training = Training('gpt', 8)")
    pid = await victim.value("import os\nprint(os.getpid())")
    cell = asyncio.create_task(victim.execute(_ENDLESS))
    await asyncio.sleep(3)
    if cell.done():
        raise BenchmarkFailed("the training that was to be killed ended before.")
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if await survivor.value(_GO_ON) <= 0:
        raise BenchmarkFailed("the other session did not go on.")
    cell.cancel()
    return time.monotonic() - begun


if __name__ == "__main__":
    main("soak", measure)
