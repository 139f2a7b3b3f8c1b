"""What one user can fill, where the operating system keeps users apart, is not where the services need space."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.harness import PATIENCE
from tests.executor.isolation import ADA, GRACE, ApartExecutor, Executor, needs_root

pytestmark = [needs_root, pytest.mark.heavy]

#: bytes of the file system of the runtime directory, much as a small machine's `/run`, and of that of the homes
_RUN_BYTES, _HOMES_BYTES = 24 << 20, 64 << 20

#: writes wherever the session can, until that is full
_FILL = """if True:
    import os, tempfile
    from pathlib import Path
    places = [os.environ["XDG_RUNTIME_DIR"], os.environ["HOME"]]
    for place in places:
        try:
            with open(Path(place, "filling"), "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError as error:
            print(error.strerror)
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").endswith(".log"):
                continue
            for _ in range(64):
                os.write(int(name), bytes(1 << 20))
        except OSError as error:
            print(error.strerror)
"""


class _SmallExecutor(ApartExecutor):
    """One whose runtime directory and homes are each on a small file system of its own."""

    def start(self) -> None:
        for place, size in ((self.runtime_directory, _RUN_BYTES), (self.homes, _HOMES_BYTES)):
            place.mkdir(mode=0o711)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=711", "none", str(place)], check=True)
        super().start()


@pytest.fixture
def small(small_disk: Path) -> Iterator[ApartExecutor]:
    """Yield such an executor; skipped where no small disk can be had."""
    process = _SmallExecutor("--spares", "0")
    yield process
    process.process.terminate()  # with its sessions
    process.process.wait(PATIENCE)
    for place in (process.runtime_directory, process.homes):
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    shutil.rmtree(process.directory)


async def test_a_user_takes_no_space_that_others_need_to_start(small: ApartExecutor) -> None:
    """A user's directories and session log can be full, and yet the services have as much space as before.

    Of a session that was shut down, nothing is left in its user's directory, its log neither.
    """
    async with Executor(small) as executor:
        grace = await executor.notebook(GRACE)  # a first start needs a home
        await executor.client.end_session(grace.session)
        ada = await executor.notebook(ADA)
        own = (await ada.run("import os; print(os.environ['XDG_RUNTIME_DIR'])")).text.strip()
        before = os.statvfs(small.runtime_directory).f_bavail
        filled = await ada.run(_FILL)
        assert filled.text.splitlines().count("No space left on device") >= 2, filled
        after = os.statvfs(small.runtime_directory).f_bavail
        page = os.statvfs(small.runtime_directory).f_frsize
        assert (before - after) * page < 1 << 20
        for _ in range(2):  # there are no spares
            grace = await executor.notebook(GRACE)
            assert (await grace.run("6 * 7")).text == "42"
            await executor.client.end_session(grace.session)
        socket, filling, log = sorted(os.listdir(own))
        assert (socket, filling, log.partition("-")[0]) == (str(ada.record.pid), "filling", "session")
        await executor.client.end_session(ada.session)
        assert os.listdir(own) == ["filling"]
