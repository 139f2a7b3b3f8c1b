"""Homes of their own for users whose sessions all run under the executor's account."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor
from tests.executor.sessions.test_packages import make_wheel
from tests.status.documents import to_json


@pytest.mark.heavy
async def test_users_do_not_come_across_each_other_s_files(start_executor: StartExecutor, tmp_path: Path) -> None:
    """Folder, history, settings and installed packages are each user's own; status says what that does not protect."""
    homes = tmp_path / "homes"
    process = start_executor("--homes", str(homes))
    wheel = make_wheel(tmp_path)

    async with Executor(process) as executor:
        device = to_json(await executor.client.status())["device"]
        assert device["isolation"] == "homes"
        assert "end other users' sessions" in device["isolation_note"]
        ada, grace = await executor.notebook("ada"), await executor.notebook("grace")
        where = "import os, pathlib; os.getcwd(), str(pathlib.Path.home()), get_ipython().ipython_dir"
        for notebook, user in ((ada, "ada"), (grace, "grace")):
            home = str(homes / user)
            assert (await notebook.run(where)).text.replace("\n", "") == str((home, home, f"{home}/.ipython"))
        assert "Successfully installed" in (await ada.run(f"%pip install --no-index {wheel}")).text
        assert (await ada.run("import own_package; own_package.answer")).text == "42"
        assert (await grace.run("import own_package")).error == "ModuleNotFoundError"
        assert "own_package" not in (await grace.run("%history -g")).text.replace("import own_package", "", 1)
