"""A real executor process and real kernel clients on its sessions, without a gateway between."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from jupyter_client.asynchronous.client import AsyncKernelClient

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.processes.process import PersistedSession
from sharedkernel.executor.processes.records import read_record
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.paths import RECORDS_DIRECTORY
from sharedkernel.protocol import Limits, SessionRecord
from tests.printed import printed
from tests.readiness import wait_until_ready
from tests.status.documents import to_json
from tests.warm import WarmPlace, give_back

#: in the executor's environment, and nowhere else
SECRET = "a-secret-of-the-executor"
#: seconds that anything in these tests may take, on a busy machine
PATIENCE = 60.0
#: option with which an executor that is told to end does so with its sessions
_END = "--end-sessions-on-exit"
#: a rush of tests is no demand: each executor would fork a dozen sessions that nobody takes
ONE_SPARE = "--ExecutorApp.spares_in_demand=1"


async def until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
    """Return the first true result of *condition*, asked again and again, and awaited where it can be."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Outcome:
    """What one cell did."""

    status: str
    text: str = ""
    error: str = ""
    message: str = ""
    #: texts shown, such as the line while it waits; empty where everything was cleared
    displays: list[str] = field(default_factory=list)


class Notebook:
    """A client on one session."""

    def __init__(self, record: SessionRecord) -> None:
        self.record = record
        self.session = record.session
        #: set once the cell that runs has displayed anything; an earlier one may have, as a line while it waited
        self.displayed = asyncio.Event()
        #: what it has displayed so far
        self.shown: list[str] = []
        self.client = AsyncKernelClient()
        self.client.load_connection_info({**record.connection, "key": record.connection["key"].encode()})
        self.client.start_channels(hb=False)  # a heartbeat that is late on a busy machine is no death

    async def run(self, code: str, timeout: float = PATIENCE, **options: Any) -> Outcome:
        """Run one cell to its end."""
        outcome = Outcome(status="")
        self.shown = outcome.displays

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            kind = message["msg_type"]
            if kind == "stream":
                outcome.text += printed(content)
            elif kind in ("execute_result", "display_data", "update_display_data"):
                outcome.displays.append(content["data"].get("text/plain", ""))
                self.displayed.set()
                if kind == "execute_result":
                    outcome.text += content["data"]["text/plain"]
            elif kind == "clear_output":
                outcome.displays.append("")
            elif kind == "error":
                outcome.error, outcome.message = content["ename"], content["evalue"]

        try:
            reply = await self.client.execute_interactive(code, timeout=timeout, output_hook=show, **options)
        finally:
            self.displayed.clear()
        outcome.status = reply["content"]["status"]
        return outcome

    async def shows(self, text: str) -> None:
        """Return once the cell that runs has displayed *text*, among others: it may have waited for more than that."""
        await until(lambda: any(text in shown for shown in self.shown), f"{text} is displayed")

    def close(self) -> None:
        """Let go of the kernel."""
        self.client.stop_channels()
        self.client.context.term()


class ExecutorProcess:
    """A ``sharedkernel executor`` process and its directory.

    Parameters
    ----------
    options, capacity
        Of its command line.
    place
        A runtime directory that may have a warm parent already, which then is left there; None: one of its own.
    package
        Folder of another version of sharedkernel, to be run from the next start on; None: the one that is tested.
    """

    def __init__(
        self, *options: str, capacity: str = "4GiB", place: WarmPlace | None = None, package: Path | None = None
    ) -> None:
        self._place = place
        self.directory = Path(tempfile.mkdtemp(prefix="sk-")) if place is None else place.directory
        self.runtime_directory = self.directory / "run"
        self.options = options
        self._capacity = capacity
        self.package = package
        self.process: subprocess.Popen[bytes]
        self.start()

    def command(self) -> list[str]:
        """Return its command line."""
        device = () if "--device" in self.options else ("--device", "host")
        # where others use its warm parent, that stays
        end = () if self._place is not None or _END in self.options else (_END,)
        # an old version knows no such options
        state = () if self.package is not None else ("--state-dir", str(self.runtime_directory), ONE_SPARE)
        return [
            sys.executable, "-m", "sharedkernel", "executor", "--capacity", self._capacity,
            "--runtime-dir", str(self.runtime_directory), *state, *device, *end, *self.options,
        ]  # fmt: skip

    def start(self) -> None:
        """Start it (again)."""
        with (self.directory / "executor.log").open("ab") as log:
            environment = {**os.environ, "SHAREDKERNEL_TOKEN": SECRET}
            if self._place is not None:
                environment["TMPDIR"] = str(self._place.scratch)
            if self.package is not None:
                environment["PYTHONPATH"] = str(self.package)
                environment["XDG_STATE_HOME"] = str(self.directory / "state")
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.package
            )

    def wait(self) -> None:
        """Return once it answers."""

        async def reach() -> None:
            async with Executor(self):
                pass

        asyncio.run(reach())

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it with all its sessions; nothing is left, but a warm parent in a place that is not its own."""
        if self._place is not None:
            self.process.terminate()
            self.process.wait(PATIENCE)
            give_back(self._place)
            return
        if self.process.poll() is not None:
            self.start()  # a test killed it: its sessions still have to go

        try:
            self.wait()
            self.process.terminate()
            self.process.wait(PATIENCE)
        finally:
            self.kill()
            shutil.rmtree(self.directory)

    def records(self) -> list[PersistedSession]:
        """Return what the next executor would find of sessions and spares."""
        found = []
        for path in (self.runtime_directory / RECORDS_DIRECTORY).iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was just being written, or its process has just ended
                found.append(read_record(path))
        return [record for record in found if record is not None]

    def spares(self) -> list[PersistedSession]:
        """Return those of processes that are nobody's yet."""
        return [record for record in self.records() if record.session is None]

    def log(self) -> str:
        """Return what it and its sessions logged."""
        logs = [self.directory / "executor.log", *(self.runtime_directory / "logs").glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in logs)


class Executor:
    """A client of an executor process; ends the sessions it started."""

    def __init__(self, process: ExecutorProcess) -> None:
        self.process = process
        self.client = ExecutorClient(process.runtime_directory, role="gateway")
        self._notebooks: list[Notebook] = []

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            print(self.process.log())  # noqa: T201 (shown beside the failed test)
        for notebook in self._notebooks:
            notebook.close()
        await asyncio.gather(*(self._end(notebook) for notebook in self._notebooks))
        await self.client.close()

    async def _end(self, notebook: Notebook) -> None:
        with contextlib.suppress(SharedKernelError):
            await self.client.end_session(notebook.session)

    async def connect(self) -> None:
        """Connect as soon as the process answers."""
        await self.client.close()

        async def reached() -> bool:
            assert self.process.process.poll() is None, self.process.log()
            try:
                await self.client.connect()
            except SharedKernelError:
                return False
            return True

        await until(reached, "the executor answers")

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Kill the process, and afterwards start and reach another on the same directory."""
        await asyncio.to_thread(self.process.kill)
        yield
        await asyncio.to_thread(self.process.start)
        await self.connect()

    async def replace(self) -> None:
        """Have another process take this one's place."""
        async with self.away():
            pass

    async def notebook(self, user: str = "ada", session: str | None = None, **options: Any) -> Notebook:
        """Start a session and connect to it."""
        limits = options.pop("limits", Limits(user=user))
        notebook = Notebook(await self.client.start_session(session or str(uuid4()), limits, **options))
        self._notebooks.append(notebook)
        await wait_until_ready(notebook.client, PATIENCE)
        return notebook

    async def notebooks(self, *users: str, **options: Any) -> list[Notebook]:
        """Start a session for each of *users*, all at once, and connect to them."""
        return await asyncio.gather(*(self.notebook(user, **options) for user in users))

    async def session(self, notebook: Notebook) -> dict[str, Any]:
        """Return what status says of a notebook's session, with all that it said before its cell's reply.

        The executor takes what has come on several connections in any order. So a question may be answered before
        what a session said earlier; the next question is not.
        """
        await self.client.status()
        status = to_json(await self.client.status())
        return next(entry for entry in status["sessions"] if entry["id"] == notebook.session)

    async def until_session(
        self, notebook: Notebook, is_so: Callable[[dict[str, Any]], Any], what: str, timeout: float = PATIENCE
    ) -> Any:
        """Return the first true result of *is_so* on what status says of a notebook's session."""

        async def look() -> Any:
            return is_so(await self.session(notebook))

        return await until(look, what, timeout)

    async def until_ended(self, ended: Notebook | str, what: str) -> None:
        """Return once a session, or a notebook's, is in no list of sessions any more."""
        session = ended if isinstance(ended, str) else ended.session

        async def is_gone() -> bool:
            return session not in {record.session for record in await self.client.sessions()}

        await until(is_gone, what)

    def told_of_end(self) -> asyncio.Future[str]:
        """Return what will be told of the next session that dies."""
        died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client.on_died = lambda message: died.done() or died.set_result(message.message)
        return died
