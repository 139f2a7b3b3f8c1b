"""A cell that holds the device and computes nothing lets others have it, in real sessions."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sharedkernel.executor.dispatch.idleness import processor_seconds
from tests.executor.harness import Executor, ExecutorProcess, until

#: turns that nobody lives to see the end of: only an idle holder's grant is asked back
PATIENT = ("--quantum", "10m", "--preempt-patience", "10m")

WAITS = {
    "sleep": "time.sleep(600)",
    "child": "import subprocess\nsubprocess.run(['sleep', '600'])",
    "queue": "import queue\nqueue.Queue().get(timeout=600)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_cell_that_waits_lets_others_compute(wait: str) -> None:
    """Its turn would last for ten minutes."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            holder, other = await executor.notebook("ada"), await executor.notebook("grace")
            code = f"import time, torch\nx = torch.ones(1000)\nprint(x.sum().item(), flush=True)\n{WAITS[wait]}"
            waiting = asyncio.create_task(holder.run(code, timeout=300))

            async def holds() -> bool:
                return bool((await executor.session(holder))["state"] == "running")

            await until(holds, "the first cell holds the device")
            outcome = await other.run("import torch\nprint(torch.ones(1000).sum().item())", timeout=120)
            assert (outcome.status, outcome.text.strip()) == ("ok", "1000.0"), outcome
            await executor.client.signal_session(holder.session, 2)
            assert (await waiting).error == "KeyboardInterrupt"
            outcome = await holder.run("print(x.sum().item())", timeout=120)
            assert outcome.text.strip() == "1000.0", outcome

    process = ExecutorProcess(*PATIENT)
    try:
        asyncio.run(scenario())
    finally:
        process.close()


def test_processor_time_is_the_whole_process_s() -> None:
    """With that of its threads, as the system counts it; of a process that is gone there is none."""
    code = "import threading, time\ndef spin():\n    while time.process_time() < 0.5: pass\n"
    code += "t = threading.Thread(target=spin); t.start(); t.join(); print(time.process_time(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        own = float(it.stdout.readline())
        used = processor_seconds(it.pid)
        assert used is not None
        assert own <= used < own + 0.2
        it.kill()
    assert processor_seconds(it.pid) is None
