"""A cell that holds the device and computes nothing lets others have it, in real sessions."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sharedkernel.executor.dispatch.idleness import processor_seconds
from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor

#: turns that nobody lives to see the end of: only an idle holder's grant is asked back
PATIENT = ("--quantum", "10m", "--preempt-patience", "10m")

WAITS = ("time.sleep(600)", "import subprocess\nsubprocess.run(['sleep', '600'])")


@pytest.mark.heavy
async def test_a_cell_that_waits_lets_others_compute(start_executor: StartExecutor) -> None:
    """Its turn would last for ten minutes."""
    async with Executor(start_executor(*PATIENT)) as executor:
        holder, other = await executor.notebook("ada"), await executor.notebook("grace")
        for number, wait in enumerate(WAITS):
            code = f"import time, torch\nx = torch.full((1000,), {number}.)\nprint(x.sum().item(), flush=True)\n{wait}"
            waiting = asyncio.create_task(holder.run(code, timeout=300))
            await executor.until_session(holder, lambda entry: entry["state"] == "running", "it holds the device")
            outcome = await other.run("import torch\nprint(torch.ones(1000).sum().item())", timeout=120)
            assert (outcome.status, outcome.text.strip()) == ("ok", "1000.0"), (wait, outcome)
            await executor.client.signal_session(holder.session, 2)
            assert (await waiting).error == "KeyboardInterrupt", wait
            outcome = await holder.run("print(x.sum().item())", timeout=120)
            assert outcome.text.strip() == f"{1000.0 * number}", (wait, outcome)


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
