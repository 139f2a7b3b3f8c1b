"""An executor adopts sessions of other code with the same control protocol, and refuses those of a real old version."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sharedkernel
from sharedkernel import protocol
from sharedkernel.executor.supervision.environments import listener_of
from sharedkernel.paths import EXECUTOR_SOCKET, RETIRED_SOCKETS, WARM_PARENT_SOCKET
from sharedkernel.protocol import SessionRecord
from tests.executor.environments import make_environment
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook, until
from tests.executor.supervision.test_environments import refusal
from tests.executor.supervision.test_upgrades import make_package
from tests.readiness import wait_until_ready

pytestmark = pytest.mark.heavy

#: the commit before this one is tried, whose control protocol is 3
CHANGE = "987d17a"


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


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ExecutorProcess]:
    """Yield an executor of a copy of today's package."""
    process = ExecutorProcess(package=make_package(tmp_path))
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


async def test_sessions_of_other_code_are_adopted(process: ExecutorProcess) -> None:
    """With their data, offloaded or not, idle or in the middle of a cell; what they were forked from ends with them.

    New notebooks have the new code, whatever is killed meanwhile.
    """
    directory, package = process.runtime_directory, process.package
    assert package is not None
    kept = "8388608.0", True
    marker = process.directory / "runs"
    loop = f"display('begun')\nwhile os.path.exists({str(marker)!r}):\n    x = x * 1\nprint('ended')"
    version = "import sharedkernel; print(sharedkernel.__version__)"

    async with Executor(process) as executor:
        idle, busy, away = old = [await executor.notebook() for _ in range(3)]
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
            assert await state_of(notebook) == kept
        assert await run(away, "from sharedkernel import shelf; float(shelf['kept'].sum())") == "1000.0"
        assert "All your notebooks" in await run(away, "from sharedkernel.widgets import Usage; Usage()")
        assert await run(away, version) == "9.9\n"
        await executor.client.offload_session(idle.session)

        await executor.replace()
        for notebook in old:
            assert await state_of(notebook) == kept
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
        executor.process.process.terminate()
    await until(lambda: not processes_of(directory), "all processes end")


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
            assert await state_of(notebook) == ("8388608.0", True)
        finally:
            notebook.close()
        process.process.terminate()
        await asyncio.to_thread(process.process.wait, PATIENCE)
    finally:
        for left in processes_of(process.directory):
            left.kill()
        process.kill()
        shutil.rmtree(process.directory)


def test_an_environment_with_an_old_version_is_refused(tmp_path: Path) -> None:
    """Sessions could not start there: it speaks another control protocol."""
    python = make_environment(tmp_path / "old")
    (packages,) = (tmp_path / "old").glob("lib/python*/site-packages")
    extract(packages)
    said = refusal(f"old={python}", tmp_path / "run")
    assert "the environment old has another version of sharedkernel; install the same one there." in said
