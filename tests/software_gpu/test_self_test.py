"""The self-test where the driver or torch fails, and notebooks in each mode of device memory."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.protocol import Limits
from sharedkernel.selftest.runner import Identity, SelfTest
from sharedkernel.selftest.steps import table
from sharedkernel.status.document import DeviceStatus
from tests.executor.harness import Executor, ExecutorProcess
from tests.gpu.test_lanes import train
from tests.software_gpu.support import MIB, settings

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


def patch_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, patch: str) -> None:
    """Change torch in processes that start from now on."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(patch) + PATCH)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_calls_that_fail_now_and_then_are_found() -> None:
    """Whatever fails is the lanes' alone, and nothing hangs."""
    with settings(FAIL_RATE=0.2, FAIL_SEED=0, FAIL_CALLS=LANE_CALLS):
        verdict = asyncio.run(SelfTest(IDENTITY).run(DeviceMemoryMode.SHARED))
    assert verdict.mode is DeviceMemoryMode.PRIVATE, table(verdict)
    assert sum(result.seconds for result in verdict.results) < 60


# --- notebooks in each mode ---------------------------------------------------------------------------------------

#: in two cells: also the first operation of a session, which makes the context, keeps to the quota
TOO_MUCH = "import torch; x = torch.empty(160 << 20, dtype=torch.uint8, device='cuda')"
PEAK = """
import torch
torch.cuda.reset_peak_memory_stats()
y = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')
del y
"""
QUOTA = 128 * MIB


OPTIONS = ("--reserve", "64MiB", "--spares", "0")


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
        cells = [notebook.run(train(3, seed)) for seed, notebook in enumerate(notebooks)]
        for outcome in await asyncio.gather(*cells):
            assert outcome.status == "ok", outcome
            passes, wrong, difference = json.loads(outcome.text.splitlines()[-1])
            assert passes > 5
            assert wrong == 0
            assert difference < 1e-5
        for notebook in notebooks:
            session = await executor.session(notebook)
            assert session["attained_service_seconds"] > 0.5, "they took turns"
            assert session["persistent_bytes"] > 0
        await notebooks[0].run(PEAK)
        seen = await notebooks[0].run("print(torch.cuda.max_memory_allocated() >= 40 << 20)")
        assert seen.text == "True\n", seen
        return device


async def test_notebooks_share_lanes_where_everything_passes(serve: Callable[..., ExecutorProcess]) -> None:
    """And the next executor trusts what its sessions were started with."""
    process = serve(*OPTIONS, is_new=True)
    device = await notebooks_work(process, DeviceMemoryMode.SHARED)
    assert str(device.self_test).startswith("the self-test found nothing wrong; ")
    process.kill()
    process.start()
    async with Executor(process) as executor:
        device = (await executor.client.status()).device
    assert device.memory_mode == DeviceMemoryMode.SHARED
    assert str(device.self_test).endswith("steps tried: 0 in 0.0 s, trusted: 13."), device


async def test_notebooks_have_private_memory_where_none_can_be_mapped(serve: Callable[..., ExecutorProcess]) -> None:
    """The log and status say so in one sentence."""
    with settings(FAIL_RATE=1, FAIL_CALLS="cuMemMap"):
        process = serve(*OPTIONS, is_new=True)
        device = await notebooks_work(process, DeviceMemoryMode.PRIVATE)
    assert str(device.self_test).startswith("the self-test failed at shared-memory (")
    assert device.lanes_shared_reason == device.self_test
    assert process.log().count(str(device.self_test)) == 1


async def test_notebooks_run_on_plain_torch_where_tensors_cannot_move(
    serve: Callable[..., ExecutorProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They keep what they have on the device, and say why."""
    patch_torch(monkeypatch, tmp_path, NO_RESIZE)
    process = serve(*OPTIONS, is_new=True)
    device = await notebooks_work(process, DeviceMemoryMode.PLAIN)
    assert "tensors-moved (storages cannot be resized here)" in str(device.self_test)
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; x = torch.ones(8 << 20, device='cuda')")
        with pytest.raises(Exception, match="Device memory stays where it is"):
            await executor.client.offload_session(notebook.session)
        assert (await notebook.run("print(x.sum().item())")).text == "8388608.0\n"
