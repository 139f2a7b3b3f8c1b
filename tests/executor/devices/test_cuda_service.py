"""A whole executor with real sessions, for a GPU that only NVML's stand-in knows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel.errors import Refused
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook, until
from tests.status.documents import to_json
from tests.warm import take_place

pytestmark = pytest.mark.heavy


class FakeGpuProcess(ExecutorProcess):
    """An executor process that serves it."""

    def command(self) -> list[str]:
        """Return its command line."""
        python, option, _, _, *options = super().command()
        return [python, option, "tests.executor.devices.serve_fake_gpu", *options]


@pytest.fixture
def process() -> Iterator[FakeGpuProcess]:
    """Yield such an executor."""
    process = FakeGpuProcess("--spares", "1", place=take_place())
    yield process
    process.close()


async def test_sessions_are_forked_for_a_gpu_and_watched(process: FakeGpuProcess) -> None:
    """They see one GPU, compute on the processor without a turn, and are warned and ended for what they hold of it."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        assert outcome.text == "GPU-1\n", outcome
        outcome = await notebook.run("import torch; print(torch.ones(1000, 1000).sum().item())")
        assert outcome.text == "1000000.0\n", outcome
        session = await executor.session(notebook)
        assert session["attained_service_seconds"] == 0.0, "nothing of it was the device's"
        assert session["persistent_bytes"] == session["framework_bytes"] == 0
        device = to_json(await executor.client.status())["device"]
        assert device["kind"] == "cuda"
        assert device["lanes_shared"] is False
        assert device["lanes_shared_reason"] == "it is not there."
        await _is_charged_for_use_without_a_grant(executor, process, notebook)
        await _is_ended_for_overuse(executor, process, notebook)
        process.process.send_signal(signal.SIGUSR1)
        refusal = await until(lambda: _refusal(executor), "a start is refused")
        assert refusal.reason == "device_lost"
        assert "does not answer any more" in str(refusal)


async def _is_charged_for_use_without_a_grant(executor: Executor, process: FakeGpuProcess, notebook: Notebook) -> None:
    process.process.send_signal(signal.SIGHUP)
    text = await _warning(notebook)
    assert "outside its turns" in text
    session = await executor.session(notebook)
    assert session["ungranted_service_seconds"] == pytest.approx(8.0, abs=1.0)
    assert session["attained_service_seconds"] == session["ungranted_service_seconds"]


async def _warning(notebook: Notebook) -> str:
    shown: dict[str, Any] = {}
    while shown.get("msg_type") != "stream":
        shown = await notebook.client.get_iopub_msg(timeout=PATIENCE)
    assert shown["content"]["name"] == "stderr"
    return str(shown["content"]["text"])


async def _is_ended_for_overuse(executor: Executor, process: FakeGpuProcess, notebook: Notebook) -> None:
    process.process.send_signal(signal.SIGUSR2)
    text = await _warning(notebook)
    assert "This notebook holds" in text
    assert "Free it within" in text

    await executor.until_ended(notebook, "the session is ended")
    log = process.log()
    for step in ("warned", "offloaded", "ended"):
        assert f"beyond what your quota of 15.5 GiB leaves: {step}" in log, log


async def _refusal(executor: Executor) -> Refused | None:
    try:
        await executor.notebook()
    except Refused as refusal:
        return refusal
    return None
