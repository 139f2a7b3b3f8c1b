"""Pages that a session has made itself, in the place of the one that it shares with its executor."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sharedkernel.ipc.shared_page import Page
from tests.executor.harness import Executor, ExecutorProcess

#: puts an unsealed file of the page's name and contents in its place
_PLANT = """if True:
    import os
    pages = [int(name) for name in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{name}")
             and os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:sharedkernel-")
             and "outbox" not in os.readlink(f"/proc/self/fd/{name}")]
    name = os.readlink(f"/proc/self/fd/{pages[0]}").removeprefix("/memfd:").removesuffix(" (deleted)")
    planted = os.memfd_create(name)
    os.write(planted, os.pread(pages[0], 4096, 0))
    os.dup2(planted, min(pages))
    print(len(pages))
"""


async def test_an_executor_maps_no_page_that_a_session_could_cut_off(process: ExecutorProcess) -> None:
    """Nor when it looks for the page of a session that is there already: it is adopted with its own."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run(_PLANT)).text.strip() != "0"
        await executor.replace()
        assert (await notebook.run("os.ftruncate(planted, 0); kept = 6 * 7")).status == "ok"
        for _ in range(3):
            assert (await executor.session(notebook))["state"] == "idle"
        assert (await notebook.run("import torch; int(torch.ones(kept).sum())")).text == "42"


@pytest.mark.parametrize(
    ("size", "seals"),
    [
        (4096, 0),
        (0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
        (4096, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL),
    ],
    ids=["not sealed", "too short", "read-only"],
)
def test_a_page_is_what_can_be_written_and_not_cut_off(size: int, seals: int) -> None:
    """Anything else is refused, and closed."""
    planted = os.memfd_create("sharedkernel-planted", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    page = Page.create("sharedkernel-own")
    os.write(planted, os.pread(page.descriptor, size, 0))
    page.close()
    fcntl.fcntl(planted, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ValueError, match="page"):
        Page(planted)
    assert not Path(f"/proc/self/fd/{planted}").exists()
