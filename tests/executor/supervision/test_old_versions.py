"""Today's executor takes over from versions of this repository's own history, with their sessions and data."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sharedkernel
from sharedkernel.executor.supervision.build_id import listener_of
from sharedkernel.paths import RETIRED_SOCKETS, WARM_PARENT_SOCKET
from tests.executor.environments import make_environment
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.executor.supervision.test_environments import refusal

pytestmark = pytest.mark.heavy

TODAY = Path(sharedkernel.__file__).parent
#: the commit before this one, which moved modules to rooms, is tried
CHANGE = "987d17a"


def extract(directory: Path) -> Path:
    """Put the package as it was into *directory*; return that."""
    command = ["git", "archive", f"{CHANGE}^", "sharedkernel"]
    try:
        archived = subprocess.run(command, cwd=TODAY.parent, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no git")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the checkout lacks its history: {error.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def upgrade(directory: Path) -> None:
    """Put today's package where an old one was, as an installer does."""
    shutil.rmtree(directory / "sharedkernel")
    shutil.copytree(TODAY, directory / "sharedkernel", ignore=shutil.ignore_patterns("__pycache__", "labextension"))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ExecutorProcess]:
    """Yield an executor of an old version."""
    process = ExecutorProcess(package=extract(tmp_path))
    yield process
    if processes_of(process.runtime_directory):
        process.close()
    else:
        process.kill()  # it has ended
        shutil.rmtree(process.directory)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Return the processes that have a path in *directory* on their command line or in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(directory) in word for word in words):
            found.append(process)
    return found


async def run(notebook: Notebook, code: str) -> str:
    """Return the output of a cell, which has to end well."""
    outcome = await notebook.run(code)
    assert outcome.status == "ok", outcome
    return outcome.text


async def state_of(notebook: Notebook) -> tuple[str, bool]:
    """Return what a notebook's tensor sums up to on the device, and whether the process is the one it began with."""
    total, pid = (await run(notebook, "print(float((x * 1).sum()), os.getpid())")).split()
    return total, int(pid) == notebook.record.pid


def test_sessions_of_an_old_version_are_adopted(process: ExecutorProcess) -> None:
    """With their data, offloaded or not, idle or in the middle of a cell; what they were forked from ends with them."""
    directory, package = process.runtime_directory, process.package
    kept = "8388608.0", True
    marker = process.directory / "runs"
    loop = f"display('begun')\nwhile os.path.exists({str(marker)!r}):\n    x = x * 1\nprint('ended')"

    async def main() -> None:
        assert package is not None
        async with Executor(process) as executor:
            idle, busy, away = old = [await executor.notebook() for _ in range(3)]
            for notebook in old:
                await run(notebook, "import os, torch; x = torch.ones(8 << 20)")
            await run(idle, "from sharedkernel import shelf; shelf['kept'] = torch.ones(1000)")
            await executor.client.offload_session(away.session)
            marker.touch()
            running = asyncio.create_task(run(busy, loop))
            await busy.shows("begun")
            old_parent = psutil.Process(listener_of(directory / WARM_PARENT_SOCKET))

            upgrade(package)
            await executor.replace()
            new = await executor.notebook()
            assert await run(new, "from sharedkernel import shelf; float(shelf['kept'].sum())") == "1000.0"
            assert not running.done()
            marker.unlink()
            assert (await running).endswith("ended\n")
            for notebook in old:
                assert await state_of(notebook) == kept
            assert await run(away, "from sharedkernel import shelf; float(shelf['kept'].sum())") == "1000.0"
            assert "All your notebooks" in await run(away, "from sharedkernel.widgets import Usage; Usage()")
            await executor.client.offload_session(idle.session)

            await executor.replace()
            for notebook in old:
                assert await state_of(notebook) == kept
                await executor.client.end_session(notebook.session)

            async def has_ended() -> bool:
                return not old_parent.is_running() and not list(directory.glob(RETIRED_SOCKETS))

            await until(has_ended, "the old warm parent ends")
            await executor.client.stop_executor(end_sessions=True)

        async def is_over() -> bool:
            return not processes_of(directory)

        await until(is_over, "all processes end")

    asyncio.run(main())


def test_an_environment_with_an_old_version_is_refused(tmp_path: Path) -> None:
    """It speaks the same control protocol, but sessions cannot start there: its modules are elsewhere."""
    python = make_environment(tmp_path / "old")
    (packages,) = (tmp_path / "old").glob("lib/python*/site-packages")
    extract(packages)
    said = refusal(f"old={python}", tmp_path / "run")
    assert "the environment old has another version of sharedkernel; install the same one there." in said
