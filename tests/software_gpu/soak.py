"""Random notebooks on one software GPU for as long as one likes, with a driver whose calls fail at random.

    python -m tests.software_gpu.soak --minutes 30 --sessions 8 --seed 7

Each notebook runs one random cell after another (:mod:`tests.software_gpu.random_cells`); some of them are
interrupted, some end their session. Nothing may be wrong, no cell may take longer than :data:`MOST_SECONDS`, none may
fail but for want of memory, and in the end all memory of the device is free. Prints its seed, and one JSON document at
the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sharedkernel.errors import SessionNotFound
from sharedkernel.paths import LOGS_DIRECTORY
from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook
from tests.readiness import wait_until_ready
from tests.software_gpu.build import DEFAULT_TORCH
from tests.software_gpu.random_cells import MIB, PRELUDE, Cell, Cells, Ending
from tests.software_gpu.run import default_capacity
from tests.software_gpu.support import PATIENCE, device_bytes, is_here, settings, trusted, used_by_process, used_bytes
from tests.warm import end_places, take_place

#: seconds that any cell may take, with all its waits for others
MOST_SECONDS = 240.0
#: part of the driver's calls about memory that fail; to restore a GiB takes some 2,500 of them, and all have to succeed
#: within three tries, else its turn is over: at 0.0005 a notebook of 1.2 GiB lost twelve of its turns in four minutes
FAIL_RATE = 0.0002
_CAPACITY, _CONTEXT, _RESERVE = 2048 * MIB, 32 * MIB, 64 * MIB
_USERS = 4
#: seconds between two cells of a notebook
_RESTS = (0.0, 0.0, 0.0, 0.1, 0.5, 3.0)
#: how a cell ends that was given no memory, or none for what was moved away; nothing is lost then
_NO_MEMORY = ("OutOfMemoryError", "RestoreFailed")
_POLL = 0.1


@dataclass
class Report:
    """What a soak found."""

    seed: int
    sessions: int = 0
    cells: Counter[str] = field(default_factory=Counter)
    #: names of errors that cells ended with
    errors: Counter[str] = field(default_factory=Counter)
    #: what notebooks found wrong
    wrong: list[str] = field(default_factory=list)
    #: cells that did not end
    hung: list[str] = field(default_factory=list)
    #: cells and sessions that ended otherwise than they had to
    unexpected: list[str] = field(default_factory=list)
    #: what was not given back
    left: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong, hung, unexpected or left."""
        return not (self.wrong or self.hung or self.unexpected or self.left)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class SessionEnded(Exception):
    """A session's process is gone."""


class Hung(Exception):
    """A cell did not end in time."""


@dataclass
class Outcome:
    """What was heard of one cell."""

    text: str = ""
    #: standard error
    complaints: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""


class Tenant:
    """One user at work in one notebook after another.

    Parameters
    ----------
    name
        For people.
    soak
        What this one belongs to.
    seed
        Of everything random.
    """

    def __init__(self, name: str, soak: Soak, seed: str) -> None:
        self.name = name
        self._soak = soak
        self._random = random.Random(seed)
        self._cells = Cells(self._random, soak.capacity, soak.num_tenants)
        self._notebook: Notebook | None = None

    async def work(self, until: float) -> None:
        """Run cells until so late, by the monotonic clock; the notebook is ended then."""
        while time.monotonic() < until:
            if self._notebook is None:
                await self._open()
            else:
                await self._do(self._cells.next())
            await asyncio.sleep(self._random.choice(_RESTS))
        if self._notebook is not None:
            await self._do(Cell(kind="last check", code="check()\nprint(json.dumps(wrong))"))
        await self._end()

    async def _open(self) -> None:
        """Start a session whose driver fails at other calls than those of the sessions before."""
        number = self._random.randrange(_USERS)
        user = f"user{number}"
        limits = Limits(user=user, group="lab" if number else None, offload_after=1.0)
        record = await self._soak.executor.client.start_session(str(uuid4()), limits)
        self._notebook = Notebook(record)
        self._soak.report.sessions += 1
        await wait_until_ready(self._notebook.client, PATIENCE)
        driver: dict[str, object] = {"FAIL_SEED": self._random.randrange(1 << 30), "FAIL_RATE": self._soak.fail_rate}
        variables = {f"SOFTWARE_GPU_{key}": str(value) for key, value in driver.items()}
        code = f"import os\nos.environ.update({variables})\n{PRELUDE}\nprint('[]')"
        await self._do(Cell(kind="first", code=code))

    async def _end(self) -> None:
        """End the session, and wait until its process is gone."""
        notebook, self._notebook = self._notebook, None
        if notebook is None:
            return
        notebook.close()
        with contextlib.suppress(SessionNotFound):  # it may have ended just now
            await self._soak.executor.client.end_session(notebook.session)
        deadline = time.monotonic() + PATIENCE
        while is_alive(notebook.record.pid):
            if time.monotonic() > deadline:
                self._soak.report.left.append(f"{self.name}: process {notebook.record.pid}")
                return
            await asyncio.sleep(_POLL)

    async def _do(self, cell: Cell) -> None:
        """Run one cell, and compare how it ends with how it has to."""
        assert self._notebook is not None
        report = self._soak.report
        report.cells[cell.kind] += 1
        self._soak.say(f"{self.name}: {cell.kind}")
        try:
            outcome = await self._run(cell)
        except SessionEnded:
            report.errors["session ended"] += 1
            # torch ends a process that destroys a pool, or something pinned, after a fault
            if cell.ending not in (Ending.KILL, Ending.CRASH, Ending.FAULT):
                self._unexpected(cell, "its session ended")
            await self._end()
            return
        except Hung as error:
            report.hung.append(f"{self.name}: {cell.kind} did not end in {MOST_SECONDS:.0f} s: {error}\n{cell.code}")
            os.kill(self._notebook.record.pid, signal.SIGABRT)  # it logs where its threads are
            await asyncio.sleep(_POLL)
            self._say_log()
            await self._end()
            return
        if outcome.error:
            report.errors[outcome.error] += 1
        if not self._is_expected(cell, outcome):
            self._unexpected(cell, f"{outcome.error} {outcome.message}\n{outcome.traceback}"[:5000])
        if not outcome.error and not outcome.text:
            self._unexpected(cell, "no output")
        elif not outcome.error:
            found = json.loads(outcome.text.splitlines()[-1])
            report.wrong += [f"{self.name}: {what}, seen after {cell.kind}" for what in found]
            if found:
                await self._end()
        is_lost = outcome.error and "illegal memory access" in outcome.message  # every later cell would say so again
        if is_lost or cell.ending is Ending.FAULT or (cell.kind == "first" and outcome.error):
            await self._end()

    def _unexpected(self, cell: Cell, what: str) -> None:
        assert self._notebook is not None
        session = self._notebook.session
        self._soak.report.unexpected.append(f"{self.name}: {cell.kind} in {session}: {what}\n{cell.code[-300:]}")
        self._soak.say(self._soak.report.unexpected[-1])
        self._say_log()

    def _say_log(self) -> None:
        """Say what this session has logged."""
        assert self._notebook is not None
        session = self._notebook.session
        for log in (self._soak.executor.process.runtime_directory / LOGS_DIRECTORY).glob("session-*.log"):
            if session in (text := log.read_text()):
                self._soak.say(text)

    @staticmethod
    def _is_expected(cell: Cell, outcome: Outcome) -> bool:
        """Whether a cell that has ended, with its session alive, may end so."""
        if outcome.error == "AcceleratorError" and "out of memory" in outcome.message:
            return True  # for something other than tensors: a context, pinned memory
        match cell.ending:
            case Ending.WELL:
                return outcome.error in ("", *_NO_MEMORY)
            case Ending.TOO_LARGE:
                return outcome.error in _NO_MEMORY
            case Ending.INTERRUPT:
                return outcome.error in ("KeyboardInterrupt", *_NO_MEMORY)
            case Ending.FAULT:
                return outcome.error in ("AcceleratorError", *_NO_MEMORY)
            case _:  # it may have had too little memory before its end came
                return outcome.error in _NO_MEMORY

    async def _run(self, cell: Cell) -> Outcome:
        """Run one cell to its end, which may be brought about from here.

        Raises
        ------
        SessionEnded, Hung
            When that is so.
        """
        assert self._notebook is not None
        outcome, begun = Outcome(), asyncio.Event()

        def hear(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                begun.set()
            elif kind == "stream" and content["name"] == "stdout":
                outcome.text += content["text"]
            elif kind == "stream":
                outcome.complaints += content["text"]
            elif kind == "error":
                outcome.error, outcome.message = content["ename"], content["evalue"]
                outcome.traceback = "\n".join(content["traceback"])

        client, pid = self._notebook.client, self._notebook.record.pid
        running = asyncio.create_task(client.execute_interactive(cell.code, output_hook=hear, allow_stdin=False))
        ending = asyncio.create_task(self._bring_about(cell, begun))
        deadline = time.monotonic() + MOST_SECONDS
        try:
            while not running.done():
                await asyncio.wait([running], timeout=_POLL)
                if not running.done() and not is_alive(pid):
                    raise SessionEnded
                if time.monotonic() > deadline:
                    end = repr(ending) if ending.done() else "not brought about yet"
                    raise Hung(f"{await self._describe()}\nits end: {end}\non stderr: {outcome.complaints[-5000:]}")
            content = running.result()["content"]
            if content["status"] == "error" and not outcome.error:  # an interrupt may end the display of an error
                outcome.error, outcome.message = content["ename"], content["evalue"]
            return outcome
        finally:
            for task in (running, ending):
                task.cancel()
            await asyncio.gather(running, ending, return_exceptions=True)

    async def _bring_about(self, cell: Cell, begun: asyncio.Event) -> None:
        """Interrupt or kill, some time after a cell began."""
        if cell.ending not in (Ending.INTERRUPT, Ending.KILL):
            return
        await begun.wait()
        await asyncio.sleep(cell.after)
        assert self._notebook is not None
        if cell.ending is Ending.INTERRUPT:
            await self._soak.executor.client.signal_session(self._notebook.session, signal.SIGINT)
        else:
            os.kill(self._notebook.record.pid, signal.SIGKILL)

    async def _describe(self) -> str:
        """Return what is known of a session that hangs."""
        assert self._notebook is not None
        status = await self._soak.executor.client.status()
        return f"{self._notebook.session} of {status}\nby process: {used_by_process()}"


class Soak:
    """Tenants on one executor.

    Parameters
    ----------
    executor
        Reached.
    num_tenants
        How many.
    seed
        Of everything random.
    fail_rate
        Part of the driver's calls about memory that fail in sessions.
    say
        Hears what is done.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        num_tenants: int,
        seed: int,
        fail_rate: float,
        say: Callable[[str], None],
    ) -> None:
        self.executor = executor
        self.num_tenants = num_tenants
        self.fail_rate = fail_rate
        self.say = say
        self.capacity = device_bytes()
        #: bytes of the device that others have, such as the tests' own process
        self._others_bytes = used_bytes()
        self.report = Report(seed)
        self._tenants = [Tenant(f"tenant {number}", self, f"{seed}/{number}") for number in range(num_tenants)]

    async def run(self, seconds: float) -> None:
        """Let all work for so long; then see whether everything is given back."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(tenant.work(until) for tenant in self._tenants))
        deadline = time.monotonic() + PATIENCE
        while (left := await self._left()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        self.report.left += left
        log = self.executor.process.directory / "executor.log"
        if "Traceback" in (text := log.read_text()):
            self.report.unexpected.append(text[text.index("Traceback") - 500 :][:5000])

    async def _left(self) -> list[str]:
        """Return what somebody still has, although no session is left."""
        status = await self.executor.client.status()
        found = [f"session {session.id}" for session in status.sessions]
        found += [f"lane {lane.id} of {lane.size_bytes} bytes" for lane in status.lanes]
        if units := status.device.shared_units_bytes:
            found.append(f"{units} bytes of units")
        if (used := used_bytes() - self._others_bytes) > 0:
            found.append(f"{used} bytes of the device, by process: {used_by_process()}")
        return found


def soak(
    *,
    seconds: float,
    tenants: int,
    seed: int,
    fail_rate: float = FAIL_RATE,
    say: Callable[[str], None],
) -> Report:
    """Soak on the software GPU of this run, on an executor of its own; return what was found."""
    drawn = random.Random(seed)
    capacity = device_bytes()
    with settings(CONTEXT=_CONTEXT):
        options = [
            "--device", "cuda:0", "--reserve", str(_RESERVE), "--check-lanes", "--parallel-lanes",
            str(drawn.choice((1, 1, 2))), "--growth-patience", "30s", "--memory-quantum", "5s",
            "--trust", str(trusted()),
        ]  # fmt: skip
        with _failing_driver(drawn, fail_rate):
            process = ExecutorProcess(*options, capacity=str(capacity), place=take_place())
        try:

            async def scenario() -> Report:
                async with Executor(process) as executor:
                    # which it may have found out too soon
                    while (await executor.client.status()).device.lanes_shared is not True:
                        with _failing_driver(drawn, fail_rate):
                            await executor.replace()
                    work = Soak(executor, num_tenants=tenants, seed=seed, fail_rate=fail_rate, say=say)
                    await work.run(seconds)
                    if not work.report.is_clean:
                        say(process.log())
                    return work.report

            return asyncio.run(scenario())
        finally:
            process.close()


@contextlib.contextmanager
def _failing_driver(drawn: random.Random, fail_rate: float) -> Iterator[None]:
    """Let executors that start meanwhile have a driver that fails now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTWARE_GPU_FAIL_RATE", str(fail_rate))
        patch.setenv("SOFTWARE_GPU_FAIL_SEED", str(drawn.randrange(1 << 30)))
        yield


def main() -> None:
    """Soak from the command line; where there is no software GPU yet, on one of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--sessions", type=int, default=8, help="notebooks at a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--fail-rate", type=float, default=FAIL_RATE, help="part of the driver's calls that fail")
    parser.add_argument("--torch", default=DEFAULT_TORCH, help="its version, or `newest`")
    options = parser.parse_args()
    if not is_here():
        capacity = default_capacity(most=_CAPACITY)
        command = [sys.executable, "-m", "tests.software_gpu.run", "--torch", options.torch]
        command += ["--set", f"CAPACITY={capacity}", "--", "python", "-m", "tests.software_gpu.soak"]
        command += [f"--{name.replace('_', '-')}={value or ''}" for name, value in vars(options).items()]
        sys.exit(subprocess.call(command))
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} {line}", file=sys.stderr, flush=True)  # noqa: T201

    report = soak(
        seconds=60 * options.minutes,
        tenants=options.sessions,
        seed=options.seed,
        fail_rate=options.fail_rate,
        say=say,
    )
    end_places()
    print(json.dumps(vars(report), indent=2))  # noqa: T201
    sys.exit(not report.is_clean)


if __name__ == "__main__":
    main()
