"""An executor adopts sessions of other code with the same control protocol, and refuses those of another one.

Nothing is lost, and no session mixes two versions of the package.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
from pathlib import Path

import psutil
import pytest

import sharedkernel
from sharedkernel import protocol
from sharedkernel.executor.supervision.environments import folders_build_id, listener_of
from sharedkernel.paths import EXECUTOR_SOCKET, RETIRED_SOCKETS, WARM_PARENT_SOCKET
from sharedkernel.protocol import SessionRecord
from tests.executor.conftest import StartExecutor
from tests.executor.harness import ONE_SPARE, PATIENCE, Executor, ExecutorProcess, Notebook, until
from tests.readiness import wait_until_ready

pytestmark = pytest.mark.heavy

#: the commit before this one is tried, whose control protocol is 3
CHANGE = "987d17a"


def make_package(directory: Path, *, speaks: int = protocol.PROTOCOL_VERSION) -> Path:
    """Copy the package to *directory* as version 9.9 that *speaks* this control protocol; return the folder."""
    source = Path(sharedkernel.__file__).parent
    copy = directory / "sharedkernel"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("labextension"))  # compiled, what is
    (copy / "_version.py").write_text('"""Another version."""\n\n__version__ = "9.9"\n')
    init = copy / "protocol" / "__init__.py"
    ours = f"PROTOCOL_VERSION = {protocol.PROTOCOL_VERSION}\n"
    init.write_text(init.read_text().replace(ours, f"PROTOCOL_VERSION = {speaks}\n"))
    return directory


async def tensor_and_process(notebook: Notebook) -> tuple[str, bool]:
    """Return what a notebook's tensor sums up to, and whether the process is the one that it began with."""
    outcome = await notebook.run("import os; float(x.sum()), os.getpid()")
    total, pid = outcome.text.strip("()").split(", ")
    return total, int(pid) == notebook.record.pid


def extract(directory: Path) -> Path:
    """Put the package as it was into *directory*; return that."""
    command = ["git", "archive", f"{CHANGE}^", "sharedkernel"]
    try:
        archived = subprocess.run(command, cwd=Path(sharedkernel.__file__).parents[1], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no git")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the checkout lacks its history: {error.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


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


async def test_sessions_of_other_code_are_adopted(tmp_path: Path) -> None:
    """With their data, offloaded or not, idle or in the middle of a cell; what they were forked from ends with them.

    New notebooks have the new code, whatever is killed meanwhile.
    """
    package = make_package(tmp_path)
    process = ExecutorProcess(ONE_SPARE, package=package)
    try:
        await check_adoption(process, package)
    finally:
        await asyncio.to_thread(process.close)
    await until(lambda: not processes_of(process.directory), "all processes end")


async def check_adoption(process: ExecutorProcess, package: Path) -> None:
    directory = process.runtime_directory
    kept = "8388608.0", True
    marker = process.directory / "runs"
    loop = f"display('begun')\nwhile os.path.exists({str(marker)!r}):\n    x = x * 1\nprint('ended')"
    version = "import sharedkernel; print(sharedkernel.__version__)"

    async with Executor(process) as executor:
        idle, busy, away = old = await executor.notebooks("ada", "ada", "ada")
        for notebook in old:
            await run(notebook, "import os, torch; x = torch.ones(8 << 20)")
        await run(idle, "from sharedkernel import shelf; shelf['kept'] = torch.ones(1000)")
        await executor.client.offload_session(away.session)
        marker.touch()
        running = asyncio.create_task(run(busy, loop))
        await busy.shows("begun")
        await until(process.spares, "there is a spare of the old code")
        old_parent = psutil.Process(listener_of(directory / WARM_PARENT_SOCKET))

        module = package / "sharedkernel" / "_version.py"
        module.write_text(module.read_text().replace("9.9", "9.10"))
        await executor.replace()
        new = await executor.notebook()
        assert await run(new, version) == "9.10\n"
        assert await run(new, "from sharedkernel import shelf; float(shelf['kept'].sum())") == "1000.0"
        assert not running.done()
        marker.unlink()
        assert (await running).endswith("ended\n")
        for notebook in old:
            assert await tensor_and_process(notebook) == kept
        assert await run(away, "from sharedkernel import shelf; float(shelf['kept'].sum())") == "1000.0"
        assert "All your notebooks" in await run(away, "from sharedkernel.widgets import Usage; Usage()")
        assert await run(away, version) == "9.9\n"
        await executor.client.offload_session(idle.session)

        await executor.replace()
        for notebook in old:
            assert await tensor_and_process(notebook) == kept
        assert await run(new, "1 + 1") == "2"
        died = executor.told_of_end()
        os.kill(busy.record.pid, signal.SIGSEGV)
        assert "SIGSEGV" in await asyncio.wait_for(died, PATIENCE)  # which its parent alone can tell
        for notebook in (idle, away):
            await executor.client.end_session(notebook.session)
        await until(
            lambda: not old_parent.is_running() and not list(directory.glob(RETIRED_SOCKETS)),
            "the old warm parent ends",
        )
        assert await run(await executor.notebook(), version) == "9.10\n"


async def test_an_executor_of_another_protocol_leaves_sessions_alone(
    start_executor: StartExecutor, tmp_path: Path
) -> None:
    """It says what to do and ends; its predecessor's version goes on with everything."""
    process = start_executor()
    newer = make_package(tmp_path, speaks=protocol.PROTOCOL_VERSION + 1)
    directory = process.runtime_directory

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; x = torch.arange(6.)")
        await until(process.spares, "the next session, which makes files as it starts, is there")
        before = {path.name for path in directory.rglob("*")}
        async with executor.away():
            process.package = newer
            process.start()
            assert await asyncio.to_thread(process.process.wait, PATIENCE) == 1
            assert {path.name for path in directory.rglob("*")} == before
            said = (process.directory / "executor.log").read_text().splitlines()[-1]
            assert f"run on sharedkernel {sharedkernel.__version__} (control protocol" in said
            assert "Install that version again" in said
            process.package = None
        assert await tensor_and_process(notebook) == ("15.0", True)
        other = await executor.notebook()
        assert (await other.run("1 + 1")).text == "2"


# at most one a second: 40 take longer than a session asks those that speak its protocol and do not know it
@pytest.mark.parametrize("times", [3, pytest.param(40, marks=pytest.mark.slow)])
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
        async with executor.away():
            await asyncio.to_thread(refuse)
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


def start_session(directory: Path, session: str) -> SessionRecord:
    """Start a session as a command of the old version does, and return it."""
    decoder = protocol.Decoder(protocol.ToGateway, most=protocol.MAX_ANSWER_BYTES)
    start = protocol.StartSession(request=1, session=session, limits=protocol.Limits(user="ada"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(directory / EXECUTOR_SOCKET))
        connection.sendall(protocol.encode(protocol.Hello(version=3, role="command")) + protocol.encode(start))
        while data := connection.recv(1 << 16):
            for message in decoder.feed(data):
                if isinstance(message, protocol.SessionReady):
                    return message.record
                assert isinstance(message, protocol.Welcome), message
    raise AssertionError("the executor hung up")


async def test_sessions_of_an_old_version_are_refused_and_unharmed(tmp_path: Path) -> None:
    """Today's executor names that version and ends; it goes on with them."""
    process = ExecutorProcess("--end-sessions-on-exit", package=extract(tmp_path))
    try:
        await until(lambda: (process.runtime_directory / EXECUTOR_SOCKET).exists(), "the executor listens")
        notebook = Notebook(await asyncio.to_thread(start_session, process.runtime_directory, "ada's"))
        try:
            await wait_until_ready(notebook.client, PATIENCE)
            await run(notebook, "import os, torch; x = torch.ones(8 << 20)")
            process.kill()
            before, process.package = process.package, None
            process.start()
            assert await asyncio.to_thread(process.process.wait, PATIENCE) == 1
            said = (process.directory / "executor.log").read_text().splitlines()[-1]
            assert "run on sharedkernel 0.1.0 (control protocol 3), which" in said
            assert "they are unharmed. Install that version again and start its executor" in said
            process.package = before
            process.start()
            assert await tensor_and_process(notebook) == ("8388608.0", True)
        finally:
            notebook.close()
        process.process.terminate()
        await asyncio.to_thread(process.process.wait, PATIENCE)
    finally:
        for left in processes_of(process.directory):
            left.kill()
        process.kill()
        shutil.rmtree(process.directory)
