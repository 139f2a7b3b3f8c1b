"""The self-test where the driver or torch fails, and notebooks in each mode of device memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.protocol import Limits
from sharedkernel.selftest.runner import Identity, SelfTest
from sharedkernel.selftest.steps import Outcome, Verdict, table
from sharedkernel.status.document import DeviceStatus
from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import MIB, device_bytes, settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

IDENTITY = Identity(driver="580", torch="2.11.0", card="Software GPU", uuid="GPU-1")
#: calls that plain torch does not need
LANE_CALLS = "cuMemMap,cuMemSetAccess,cuMemImportFromShareableHandle,cuMemExportToShareableHandle"

#: runs once torch is imported, in every process that has the folder on its path
PATCH = """
import importlib.util, sys
from importlib.abc import MetaPathFinder

class Finder(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            patch(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
#: storages cannot be resized, so tensors cannot move
NO_RESIZE = """
def patch(torch):
    def resize_(self, size):
        raise RuntimeError("storages cannot be resized here")
    torch.UntypedStorage.resize_ = resize_
"""
#: names of functions that never return, or end their process
BROKEN = """
def patch(torch):
    import os, time
    torch.cuda.MemPool = lambda *arguments: os.abort()
    torch.UntypedStorage.resize_ = lambda self, size: time.sleep(1000)
"""


def patch_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, patch: str) -> None:
    """Change torch in processes that start from now on."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(patch) + PATCH)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def try_out(**options: Any) -> Verdict:
    """Run the self-test."""
    return asyncio.run(SelfTest(IDENTITY, **options).run(DeviceMemoryMode.SHARED))


def failed(verdict: Verdict) -> set[str]:
    return {result.step for result in verdict.failed}


def test_a_driver_that_maps_no_memory_leaves_private_memory() -> None:
    """All steps that map memory fail, and no other."""
    with settings(FAIL_RATE=1, FAIL_CALLS="cuMemMap"):
        verdict = try_out()
    assert verdict.mode is DeviceMemoryMode.PRIVATE, table(verdict)
    assert {"shared-memory", "shared-lane", "killed-holder"} <= failed(verdict)
    passed = {result.step for result in verdict.results if result.outcome is Outcome.PASSED}
    assert passed >= {"training", "memory-limit", "two-processes", "peaks", "tensors-moved"}
    assert verdict.sentence.endswith("in this run sessions' ephemeral memory is their own, and given back at a switch.")


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_fail_now_and_then_are_found(seed: int) -> None:
    """Whatever fails is the lanes' alone, and nothing hangs."""
    with settings(FAIL_RATE=0.2, FAIL_SEED=seed, FAIL_CALLS=LANE_CALLS):
        verdict = try_out()
    assert verdict.mode is DeviceMemoryMode.PRIVATE, table(verdict)
    assert sum(result.seconds for result in verdict.results) < 60


def test_a_step_that_aborts_or_hangs_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the signal in its reason; what hangs is killed, and what passed is trusted."""
    patch_torch(monkeypatch, tmp_path, BROKEN)
    trust = tmp_path / "trust.json"
    verdict = try_out(trust=trust)
    reasons = {result.step: result.why for result in verdict.failed}
    assert reasons["pools-dropped"] == "its process was ended by SIGABRT", table(verdict)
    assert "tensors-moved" in reasons
    assert reasons["tensors-moved"].startswith("it took longer than")
    assert verdict.mode is DeviceMemoryMode.PLAIN
    assert "training" in json.loads(trust.read_text())["passed"][0]["steps"]
    monkeypatch.delenv("PYTHONPATH")
    again = {result.step: result.outcome for result in try_out(trust=trust).results}
    assert again["training"] is Outcome.TRUSTED
    assert again["pools-dropped"] is again["tensors-moved"] is Outcome.PASSED


def test_the_whole_self_test_has_a_time_limit() -> None:
    """It begins when torch is loaded, which takes longer; what has not run then has not failed, but is not used."""
    verdict = try_out(seconds=3.0)
    outcomes = [result.outcome for result in verdict.results]
    assert outcomes[0] is Outcome.PASSED, table(verdict)
    assert outcomes[-1] is Outcome.NOT_RUN
    assert verdict.results[-1].why == "the self-test took longer than 3 s"
    assert not verdict.failed
    assert verdict.mode is not DeviceMemoryMode.SHARED


# --- notebooks in each mode ---------------------------------------------------------------------------------------

TRAIN = """
import json, time, torch
torch.set_num_threads(1)

def make(device):
    torch.manual_seed(SEED)  # the same on the CPU
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)
    return model, torch.optim.Adam(model.parameters()), torch.randn(64, 256).to(device)

def step(model, optimizer, inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

mine, losses = make("cuda"), []
end = time.monotonic() + 3
while time.monotonic() < end:
    losses.append(step(*mine))
reference = make("cpu")
expected = [step(*reference) for _ in losses[:5]]
print(json.dumps([len(losses), max(abs(a - b) / abs(b) for a, b in zip(losses, expected))]))
"""
#: in two cells: also the first operation of a session, which makes the context, keeps to the quota
TOO_MUCH = "import torch; x = torch.empty(160 << 20, dtype=torch.uint8, device='cuda')"
PEAK = """
import torch
torch.cuda.reset_peak_memory_stats()
y = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')
del y
"""
QUOTA = 128 * MIB


@contextlib.contextmanager
def executor_process() -> Iterator[ExecutorProcess]:
    """Yield an executor that serves the whole device."""
    capacity = f"{device_bytes() // MIB}MiB"
    process = ExecutorProcess("--device", "cuda:0", "--reserve", "64MiB", "--spares", "0", capacity=capacity)
    try:
        yield process
    finally:
        process.close()


async def notebooks_work(process: ExecutorProcess, mode: DeviceMemoryMode) -> DeviceStatus:
    """Train in two notebooks by turns, go beyond a quota, and see the user's own peaks; return the device's status."""
    async with Executor(process) as executor:
        device = (await executor.client.status()).device
        assert device.memory_mode == mode, process.log()
        assert device.lanes_shared is (mode is DeviceMemoryMode.SHARED)
        small = await executor.notebook("mary", limits=Limits(user="mary", quota_bytes=QUOTA))
        for _ in range(2):
            outcome = await small.run(TOO_MUCH)
            assert outcome.error == "OutOfMemoryError", outcome
            assert "your quota is 128 MiB" in outcome.message, outcome
        assert (await small.run("x = torch.ones(1 << 20, device='cuda'); print(x.sum().item())")).text == "1048576.0\n"
        notebooks = [await executor.notebook(user) for user in ("ada", "grace")]
        cells = [notebook.run(TRAIN.replace("SEED", str(seed))) for seed, notebook in enumerate(notebooks)]
        for outcome in await asyncio.gather(*cells):
            assert outcome.status == "ok", outcome
            passes, difference = json.loads(outcome.text.splitlines()[-1])
            assert passes > 5
            assert difference < 1e-5
        for notebook in notebooks:
            session = await executor.session(notebook)
            assert session["attained_service_seconds"] > 0.5, "they took turns"
            assert session["persistent_bytes"] > 0
        await notebooks[0].run(PEAK)
        seen = await notebooks[0].run("print(torch.cuda.max_memory_allocated() >= 40 << 20)")
        assert seen.text == "True\n", seen
        return device


def test_notebooks_share_lanes_where_everything_passes() -> None:
    """And the next executor trusts what its sessions were started with."""
    with executor_process() as process:
        device = asyncio.run(notebooks_work(process, DeviceMemoryMode.SHARED))
        assert str(device.self_test).startswith("the self-test found nothing wrong; ")
        process.kill()
        process.start()
        device = asyncio.run(notebooks_work(process, DeviceMemoryMode.SHARED))
        assert str(device.self_test).endswith("steps tried: 0 in 0.0 s, trusted: 13."), device


def test_notebooks_have_private_memory_where_none_can_be_mapped() -> None:
    """The log and status say so in one sentence."""
    with settings(FAIL_RATE=1, FAIL_CALLS="cuMemMap"), executor_process() as process:
        device = asyncio.run(notebooks_work(process, DeviceMemoryMode.PRIVATE))
        assert str(device.self_test).startswith("the self-test failed at shared-memory (")
        assert device.lanes_shared_reason == device.self_test
        assert process.log().count(str(device.self_test)) == 1


def test_notebooks_run_on_plain_torch_where_tensors_cannot_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They keep what they have on the device, and say why."""
    patch_torch(monkeypatch, tmp_path, NO_RESIZE)
    with executor_process() as process:
        device = asyncio.run(notebooks_work(process, DeviceMemoryMode.PLAIN))
        assert "tensors-moved (storages cannot be resized here)" in str(device.self_test)
        asyncio.run(_stays(process))


async def _stays(process: ExecutorProcess) -> None:
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; x = torch.ones(8 << 20, device='cuda')")
        with pytest.raises(Exception, match="Device memory stays where it is"):
            await executor.client.offload_session(notebook.session)
        assert (await notebook.run("print(x.sum().item())")).text == "8388608.0\n"
