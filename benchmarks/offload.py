"""What offloading and restoring a session cost, beside writing and reading a file of the same size.

Both are timed from outside, as a person has them: offloading from the request to the answer that the memory is free,
restoring as the whole of the next cell, which does nothing else. In turn with that, this process writes as many bytes
to a file in the same directory and reads them into fresh memory. Both sides write through to the disk (`fdatasync`)
before the clock stops, and read what the system may still have in memory from the writing before.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import BenchmarkFailed, Conditions, Result, Target, brief, median_ratio
from benchmarks.stack.servers import gateway_route
from sharedkernel.errors import SharedKernelError
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.local_stack import LocalStack
from sharedkernel.paths import offload_directory
from sharedkernel.session.offload.host import PIECE_BYTES
from sharedkernel.units import format_bytes

_TENSORS, _TENSOR_BYTES = 128, 4 << 20
_PREPARE = f"""
import json, torch
kept = [torch.randn({_TENSOR_BYTES // 4}) for _ in range({_TENSORS})]
fingerprint = [float(tensor.sum()) for tensor in kept]
"""
_CHECK = "print(json.dumps(fingerprint == [float(tensor.sum()) for tensor in kept]))"


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `offload`."""
    with LocalStack(**conditions.stack_options) as stack:
        return asyncio.run(_measure(conditions, stack))


async def _measure(conditions: Conditions, stack: LocalStack) -> list[Result]:
    pairs = conditions.effort.runs(15)
    outs: list[float] = []
    backs: list[float] = []
    writes: list[float] = []
    reads: list[float] = []
    executor = ExecutorClient(stack.runtime_directory)
    async with contextlib.AsyncExitStack() as contexts:
        contexts.push_async_callback(executor.close)
        await executor.connect()
        notebook = await contexts.enter_async_context(open_notebook(gateway_route(stack)))
        conditions.say("filling a session")
        await notebook.run(_PREPARE)
        size = await _offload_and_restore(executor, notebook, [], [])  # once unmeasured: the directory is made
        source = _random_memory(size)
        for pair in range(pairs):
            conditions.say(f"pair {pair + 1} of {pairs}")
            # Each side goes first every other time: what drifts meanwhile then favours neither.
            if pair % 2:
                await asyncio.to_thread(_write_and_read, source, writes, reads)
            await _offload_and_restore(executor, notebook, outs, backs)
            if not pair % 2:
                await asyncio.to_thread(_write_and_read, source, writes, reads)
        if not await notebook.value(_CHECK):
            raise BenchmarkFailed("tensors were not what they had been before they were offloaded.")
    what = f"of {format_bytes(size)} in {_TENSORS} tensors"
    how = f"medians, and the median ratio, of {pairs} alternating pairs; both sides end with fdatasync after writing."
    return [
        Result(
            metric="time_offload",
            value=median_ratio(outs, writes),
            unit="ratio",
            target=Target("<=", 1.3),
            how=f"Offloading a session {what}, from the request until its memory is free: "
            f"{brief(statistics.median(outs))}; writing as many bytes to a file beside it: "
            f"{brief(statistics.median(writes))}; {how}",
        ),
        Result(
            metric="time_restore",
            value=median_ratio(backs, reads),
            unit="ratio",
            target=Target("<=", 1.3),
            how=f"The next cell, which has the session restored and does nothing else: "
            f"{brief(statistics.median(backs))}; reading as many bytes from a file into fresh memory: "
            f"{brief(statistics.median(reads))}; {how}",
        ),
    ]


async def _offload_and_restore(
    executor: ExecutorClient, notebook: Notebook, outs: list[float], backs: list[float]
) -> int:
    """Time one of each; return the bytes that were away."""
    began = time.perf_counter()
    try:
        await executor.offload_session(notebook.kernel_id)
    except SharedKernelError as error:
        raise BenchmarkFailed(f"the session was not offloaded: {error}") from None
    outs.append(time.perf_counter() - began)
    status = await executor.status()
    size = next(session.offloaded_bytes for session in status.sessions if session.id == notebook.kernel_id)
    began = time.perf_counter()
    await notebook.run("pass")
    backs.append(time.perf_counter() - began)
    return int(size)


def _random_memory(size: int) -> memoryview:
    memory = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for start in range(0, size, PIECE_BYTES):
        part = memory[start : start + PIECE_BYTES]
        part[:] = os.urandom(len(part))
    return memory


def _write_and_read(source: memoryview, writes: list[float], reads: list[float]) -> None:
    directory: Path = offload_directory()
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.perf_counter()
        for start in range(0, len(source), PIECE_BYTES):
            _all(file.write(source[start : start + PIECE_BYTES]), len(source[start : start + PIECE_BYTES]))
        os.fdatasync(file.fileno())
        writes.append(time.perf_counter() - began)
        file.seek(0)
        began = time.perf_counter()
        with mmap.mmap(-1, len(source), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as target, memoryview(target) as memory:
            for start in range(0, len(source), PIECE_BYTES):
                with memory[start : start + PIECE_BYTES] as part:
                    _all(file.readinto(part), len(part))
            reads.append(time.perf_counter() - began)


def _all(done: int | None, wanted: int) -> None:
    if done != wanted:
        raise BenchmarkFailed("the disk took or gave less than it was asked to; is it full?")
