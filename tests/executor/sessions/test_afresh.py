"""Sessions that start with variables which are read when torch is imported."""

from __future__ import annotations

import asyncio

import pytest

from tests.executor.harness import PATIENCE, Executor, ExecutorProcess

pytestmark = pytest.mark.heavy

_ASKED = {"KERNEL_ENV_PYTORCH_JIT": "0", "KERNEL_ENV_MINE": "a b"}
#: whether torch has read the variable
_LOOK = "import os, torch; os.environ['MINE'], torch.jit._state._enabled.enabled"


async def test_torch_is_imported_with_them(process: ExecutorProcess) -> None:
    """In that session alone, which is a session like any other: measured, granted the device, restored, adopted."""
    async with Executor(process) as executor:
        stock, notebook = await executor.notebook(), await executor.notebook(env=_ASKED)
        assert (await notebook.run(_LOOK)).text == "('a b', False)"
        assert (await stock.run("import torch; torch.jit._state._enabled.enabled")).text == "True"
        assert (await notebook.run("kept = torch.arange(4 << 20); print('seen')")).text == "seen\n"
        assert (await notebook.run("!echo out")).text.strip() == "out"
        entry = await executor.session(notebook)
        assert entry["persistent_bytes"] >= 32 << 20
        assert entry["attained_service_seconds"] > 0
        await executor.client.offload_session(notebook.session)
        assert (await executor.session(notebook))["state"] == "offloaded"
        await executor.replace()
        assert (await notebook.run("int(kept[-1])")).text == str((4 << 20) - 1)
        died = executor.told_of_end()  # by the warm parent, whose child it is as any other
        notebook.client.execute("import os; os._exit(3)")
        assert "code 3" in await asyncio.wait_for(died, PATIENCE)
