"""Who holds a GPU and computes nothing lets others have it; who waits for work of its own there does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.software_gpu.support import settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: turns that nobody lives to see the end of: only an idle holder's grant is asked back
PATIENT = ("--quantum", "10m", "--preempt-patience", "10m", "--reserve", "64MiB")
#: as on an H100, waits for the software device sleep
SLEEP = "time.sleep(5)"
WAIT_FOR_GPU = "for _ in range(5):\n    torch.cuda._sleep(1)\ntorch.cuda.synchronize()"


@pytest.mark.parametrize(
    ("wait", "kernel_us", "is_idle"), [(SLEEP, 20, True), (WAIT_FOR_GPU, 1_000_000, False)], ids=["sleeps", "waits"]
)
async def test_a_holder_is_idle_only_while_nothing_runs_on_the_gpu(
    serve: Callable[..., ExecutorProcess], wait: str, kernel_us: int, is_idle: bool
) -> None:
    """Neither takes processor time."""
    process = serve(*PATIENT)
    async with Executor(process) as executor:
        holder, other = await executor.notebook("ada"), await executor.notebook("grace")
        use = "import time, torch\nx = torch.ones(1000, device='cuda')\n"
        assert (await other.run(use, timeout=200)).status == "ok"
        with settings(KERNEL_US=kernel_us):
            assert (await holder.run(use, timeout=200)).status == "ok"
        cells = [asyncio.create_task(holder.run(use + wait, timeout=200))]
        await until(lambda: is_in(executor, holder, "running"), "the first cell holds the device")
        cells.append(asyncio.create_task(other.run(use, timeout=200)))
        assert [outcome.status for outcome in await asyncio.gather(*cells)] == ["ok", "ok"]
    process.process.terminate()
    process.process.wait()
    record = process.runtime_directory / "logs" / "events.jsonl"
    events = [json.loads(line) for line in record.read_text().splitlines()]
    assert any(event.get("event") == "HolderIdle" for event in events) is is_idle


async def is_in(executor: Executor, notebook: Notebook, state: str) -> bool:
    return bool((await executor.session(notebook))["state"] == state)
