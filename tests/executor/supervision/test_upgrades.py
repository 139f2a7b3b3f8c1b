"""Another version of the package takes over what one left: nothing is lost, and no session mixes two of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

import sharedkernel
from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.executor.supervision.environments import folders_build_id, listener_of
from sharedkernel.paths import EXECUTOR_SOCKET, WARM_PARENT_SOCKET
from tests.executor.conftest import StartExecutor
from tests.executor.harness import PATIENCE, Executor, Notebook, until

pytestmark = pytest.mark.heavy


def make_package(directory: Path, *, speaks: int = protocol.PROTOCOL_VERSION) -> Path:
    """Copy the package to *directory* as version 9.9 that *speaks* this control protocol; return the folder."""
    source = Path(sharedkernel.__file__).parent
    copy = directory / "sharedkernel"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "labextension"))
    (copy / "_version.py").write_text('"""Another version."""\n\n__version__ = "9.9"\n')
    init = copy / "protocol" / "__init__.py"
    changed = init.read_text().replace(
        f"PROTOCOL_VERSION = {protocol.PROTOCOL_VERSION}\n", f"PROTOCOL_VERSION = {speaks}\n"
    )
    init.write_text(changed)
    return directory


async def replaced(executor: Executor, package: Path | None) -> None:
    """Let an executor of *package* take the place of the one that runs."""
    await asyncio.to_thread(executor.process.kill)
    executor.process.package = package
    await asyncio.to_thread(executor.process.start)


async def tensor_and_process(notebook: Notebook) -> tuple[str, bool]:
    """Return what a notebook's tensor sums up to, and whether the process is the one that it began with."""
    outcome = await notebook.run("import os; float(x.sum()), os.getpid()")
    total, pid = outcome.text.strip("()").split(", ")
    return total, int(pid) == notebook.record.pid


async def test_an_executor_of_another_protocol_leaves_sessions_alone(
    start_executor: StartExecutor, tmp_path: Path
) -> None:
    """It says what to do and ends, whatever of its predecessor is there; that one's version goes on with everything."""
    process = start_executor()
    newer = make_package(tmp_path, speaks=protocol.PROTOCOL_VERSION + 1)
    directory = process.runtime_directory

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; x = torch.arange(6.)")
        await until(process.spares, "the next session, which makes files as it starts, is there")
        for helpers in ([], [WARM_PARENT_SOCKET]):  # in the end sessions alone are left
            for name in helpers:
                os.kill(listener_of(directory / name), signal.SIGKILL)
            before = {path.name for path in directory.rglob("*")}
            await replaced(executor, newer)
            assert await asyncio.to_thread(process.process.wait, PATIENCE) == 1
            assert {path.name for path in directory.rglob("*")} == before
            said = (process.directory / "executor.log").read_text().splitlines()[-1]
            assert f"run on sharedkernel {sharedkernel.__version__} (control protocol" in said
            assert "Install that version again" in said
        await replaced(executor, None)
        await executor.connect()
        assert await tensor_and_process(notebook) == ("15.0", True)
        other = await executor.notebook()
        assert (await other.run("1 + 1")).text == "2"


# at most one a second: 40 take longer than a session asks those that speak its protocol and do not know it
@pytest.mark.parametrize("times", [5, pytest.param(40, marks=pytest.mark.slow)])
async def test_a_session_outwaits_an_executor_of_another_protocol(start_executor: StartExecutor, times: int) -> None:
    """However often it is refused; the right one finds it with its tensors."""
    process = start_executor("--spares", "0")
    path = process.runtime_directory / EXECUTOR_SOCKET
    refusal = protocol.encode(protocol.Failed(request=0, reason="protocol", message="another version."))

    def refuse() -> None:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(PATIENCE)
            listener.bind(str(path))
            listener.listen()
            for _ in range(times):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(refusal)

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; x = torch.arange(6.)")
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(refuse)
        await asyncio.to_thread(process.start)
        await executor.connect()
        assert await tensor_and_process(notebook) == ("15.0", True)


def test_code_is_other_code_once_anything_is_installed_or_edited(tmp_path: Path) -> None:
    """Also where the version stays the same; what is found again is the same code."""
    data, packages, sources = (tmp_path / name for name in ("data", "packages", "sources"))
    (data / "sharedkernel").mkdir(parents=True)  # no package, and in front of it
    (packages / "torch-2.11.dist-info").mkdir(parents=True)
    module = make_package(sources) / "sharedkernel" / "units.py"
    folders = [str(tmp_path / "nowhere"), str(data), str(packages), str(sources)]
    stamps = [folders_build_id(folders)]
    assert stamps[0] == folders_build_id(folders)
    for change in (
        lambda: module.write_text(module.read_text() + "# edited\n"),
        lambda: (packages / "torch-2.11.dist-info").rename(packages / "torch-2.12.dist-info"),
        lambda: module.unlink(),
    ):
        change()
        stamps.append(folders_build_id(folders))
    assert len(set(stamps)) == 4


async def test_a_warm_parent_of_another_protocol_does_not_start(start_executor: StartExecutor, tmp_path: Path) -> None:
    """One is installed under a running executor, whose warm parent ends: its sessions could not talk to it."""
    package = make_package(tmp_path)
    process = start_executor()

    async with Executor(process) as executor:
        await replaced(executor, package)
        await executor.connect()
        init = package / "sharedkernel" / "protocol" / "__init__.py"
        speaks = f"PROTOCOL_VERSION = {protocol.PROTOCOL_VERSION}"
        init.write_text(init.read_text().replace(speaks, speaks + "9"))
        os.kill(listener_of(process.runtime_directory / WARM_PARENT_SOCKET), signal.SIGKILL)

        async def is_refused() -> bool:  # a spare may be there still, or was about to be
            try:
                await executor.notebook()
            except (ExecutorUnavailable, Refused) as error:
                return "warm_parent did not start; see" in str(error)
            return False

        await until(is_refused, "a new session is refused")
        assert "another version of sharedkernel was installed" in process.log()
