"""What a message costs the whole executor around the scheduler, and how that grows with the sessions.

The twin of `cost.py`: the same sessions and iterations, under simulated time, but each message comes in as bytes and
passes connection, router, controller, driver, leases, timeline and waits, and what is decided goes out as bytes again.
The device and the sessions' ends of their connections are fakes; the event log is a file. The status
document is timed afterwards, by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import selectors
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.simulate import tables
from sharedkernel import protocol
from sharedkernel.executor.control.api import ControlApi
from sharedkernel.executor.control.router import MessageRouter
from sharedkernel.executor.control.status_builder import StatusBuilder, StatusStream
from sharedkernel.executor.control.wait_notifier import WaitNotifier
from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.executor.isolation.policy import Isolation, IsolationOptions
from sharedkernel.executor.processes.connections import ControlConnection, UngreetedConnections
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.sessions.detached import DetachTimers
from sharedkernel.ipc.seqpacket import allow_many_descriptors
from sharedkernel.ipc.shared_page import Page, Turn, Word
from sharedkernel.protocol import Device, Limits, Memory
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.status.document import pack_part
from sharedkernel.system.tasks import BackgroundTasks

#: seconds of an iteration, and of a turn
_ITERATION, _QUANTUM = 0.01, 0.05
#: iterations of a cell
_CELL = 20
#: bytes of the device, and what a session keeps and has in use in an iteration
_CAPACITY, _PERSISTENT, _LIVE = 1 << 42, 64 << 20, 256 << 20
#: documents that are timed
_DOCUMENTS = 20
_COLUMNS = ["sessions", "iterations", "events", "processor, s", "us an event", "us an iteration"]
_STATUS_COLUMNS = ["sessions", "ms a document", "ms a document of the same moment", "ms a viewer"]


class _Selector(selectors.SelectSelector):
    """Waits for nothing: the time that others would wait is skipped."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.skipped += timeout or 0.0
        return []


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop in which no time passes but what is waited for."""

    def __init__(self) -> None:
        self._skips = _Selector()
        super().__init__(self._skips)

    def time(self) -> float:
        """Return the simulated time, seconds."""
        return self._skips.skipped


class _FakeDevice(HostLimits):
    """The host device, which looks at no process."""

    async def start(self, runtime_directory: Path, control: SessionControl) -> None:
        """Start nothing."""

    def seen_bytes(self, process: SessionHandle) -> int:
        """Return all of the device."""
        return self.device.capacity_bytes


class _FakeSession:
    """A session's end of its connection: cells of iterations, each of which may end its turn."""

    def __init__(self, process: SessionHandle, router: MessageRouter, iterations: int, ended: Callable[[], None]):
        self._words = process.page.words
        self._peer = ControlConnection(router, UngreetedConnections(lambda uid: True))
        self._peer.role, self._peer.session = "session", process
        self._peer.transport = process.transport = cast(asyncio.Transport, self)
        self._left, self._ended = iterations, ended
        self._left_in_cell = self._in_turn = 0
        self._memory = Memory(persistent=_PERSISTENT, ephemeral=_LIVE, framework=0)
        self._later = asyncio.get_running_loop().call_later

    # --- the transport -----------------------------------

    def write(self, data: bytes) -> None:
        """Take what the executor sends; only a grant matters."""
        if b"Granted" in data:
            self._words[Word.TURN] = Turn.HOLDING
            self._in_turn = 0
            self._iterate()

    def get_write_buffer_size(self) -> int:
        """Return that all was read."""
        return 0

    def is_closing(self) -> bool:
        """Return that it stays open."""
        return False

    def pause_reading(self) -> None:
        """Do nothing: what was reported has been read."""

    def resume_reading(self) -> None:
        """Do nothing, either."""

    def close(self) -> None:
        """Fail: the executor hangs up only on a session that it cannot understand."""
        raise RuntimeError("the executor hung up")

    # --- the session -----------------------------------

    def begin(self) -> None:
        """Open a cell."""
        self._left_in_cell = min(_CELL, self._left)
        self._words[Word.TURN] = Turn.WANTING
        self._report(protocol.CellOpenedReport(), self._wanted())

    def _iterate(self) -> None:
        self._words[Word.LIVE] = _LIVE
        self._later(_ITERATION, self._boundary)

    def _boundary(self) -> None:
        self._words[Word.LIVE] = 0
        self._words[Word.ITERATIONS] += 1
        self._in_turn += 1
        self._left -= 1
        self._left_in_cell -= 1
        if not self._left_in_cell:
            self._words[Word.TURN] = Turn.IDLE
            self._report(self._released("cell"), protocol.CellClosedReport(memory=self._memory))
            if self._left:
                self.begin()
            else:
                self._ended()
        elif self._words[Word.PREEMPT]:
            self._words[Word.TURN] = Turn.WANTING
            self._report(self._released("boundary"), self._wanted())
        else:
            self._iterate()

    def _wanted(self) -> protocol.DeviceWantedReport:
        return protocol.DeviceWantedReport(memory=self._memory, data_bytes=_PERSISTENT)

    def _released(self, at: Any) -> protocol.GrantReleasedReport:
        return protocol.GrantReleasedReport(at=at, memory=self._memory, iterations=self._in_turn, utilisation=0.9)

    def _report(self, *messages: protocol.Message) -> None:
        self._peer.data_received(b"".join(map(protocol.encode, messages)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run cost."""

    #: processor-seconds, and what they were spent on
    seconds: float
    events: int
    iterations: int
    #: seconds that a status document takes, that one takes when nothing has happened since, and each that looks at it
    document: float
    again: float
    viewer: float


class _Executor:
    """An executor all of whose sessions are one process that sleeps; needs a running event loop."""

    def __init__(self, directory: Path) -> None:
        #: the process of every session: limits are set on it, as on real ones
        self._stand_in = subprocess.Popen(["sleep", "infinity"])
        self._pidfd = os.pidfd_open(self._stand_in.pid)
        device = Device(name="simulated", kind="host", capacity_bytes=_CAPACITY, reserve_bytes=0)
        served = _FakeDevice(device)
        config = SchedulerConfig(capacity=_CAPACITY, preempt_patience=3600.0, quantum=_QUANTUM)
        self.controller = SessionController(
            served, config, EventLog(directory / "events.jsonl"), WorkloadHistory(directory), lambda *_: None, directory
        )
        isolation = Isolation(IsolationOptions(isolate="off"), directory)
        self.status = StatusBuilder(served, isolation, self.controller)
        self.waits = WaitNotifier(self.controller)
        nobody, tasks = cast(Any, SimpleNamespace(environments=())), BackgroundTasks()
        api = ControlApi(self.controller, nobody, nobody, nobody, isolation, nobody, self.status, nobody)
        self.router = MessageRouter(
            self.controller,
            nobody,
            api,
            DetachTimers(self.controller, lambda process: None, tasks),
            self.waits,
            StatusStream(self.status.view, tasks),
            served,
            isolation,
            tasks,
        )

    def start(self, number: int) -> SessionHandle:
        """Start a session of a user of its own."""
        limits = Limits(user=f"user-{number}")
        process = SessionHandle(
            process=f"process-{number}",
            page=Page.create("simulated"),
            pid=self._stand_in.pid,
            started=0,
            pidfd=self._pidfd,
            ready=asyncio.get_running_loop().create_future(),
            session=f"session-{number}",
            user=limits.user,
            limits=limits,
        )
        self.controller.add(process)
        return process

    def close(self) -> None:
        """Stop, and free the sessions' pages."""
        self.waits.close()
        self.controller.close()
        for process in self.controller.sessions.values():
            process.page.close()
        os.close(self._pidfd)
        self._stand_in.kill()
        self._stand_in.wait()


async def _measure(sessions: int, iterations: int, directory: Path) -> Cost:
    executor = _Executor(directory)
    try:
        processes = [executor.start(number) for number in range(sessions)]
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        left = sessions

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                over.set_result(None)

        def failed(_loop: object, context: dict[str, Any]) -> None:
            if not over.done():  # else it would wait for ever
                over.set_exception(context.get("exception") or RuntimeError(context["message"]))

        loop.set_exception_handler(failed)

        each = iterations // sessions
        before, began = executor.controller.driver.revision, time.process_time()
        for process in processes:
            loop.call_soon(_FakeSession(process, executor.router, each, ended).begin)
        await over
        seconds = time.process_time() - began
        events = executor.controller.driver.revision - before
        document, again, viewer = _status(executor, processes)
        return Cost(
            seconds=seconds, events=events, iterations=each * sessions, document=document, again=again, viewer=viewer
        )
    finally:
        executor.close()


def _status(executor: _Executor, processes: list[SessionHandle]) -> tuple[float, float, float]:
    """Return the median seconds of a document after an event, of another one, and of what one user may see of it."""
    taken: list[tuple[float, float, float]] = []
    for number in range(_DOCUMENTS):
        limits = [processes[(number + offset) % len(processes)].limits or Limits(user="") for offset in (0, 1)]
        executor.controller.configure(limits[0])
        moments = [time.process_time()]
        for _ in range(2):
            pack_part(executor.status.document())
            moments.append(time.process_time())
        executor.status.view(limits[0].user)
        moments.append(time.process_time())
        pack_part(executor.status.view(limits[1].user))
        moments.append(time.process_time())
        taken.append((moments[1] - moments[0], moments[2] - moments[1], moments[4] - moments[3]))
    return cast(tuple[float, float, float], tuple(map(statistics.median, zip(*taken, strict=True))))


def run(sessions: int, iterations: int) -> Cost:
    """Return what *sessions* that share *iterations* of 10 ms cost."""
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=SimulatedTime) as runner:
        return runner.run(_measure(sessions, iterations, Path(directory)))


def main() -> None:
    """Print the cost by number of sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=[10, 100, 1000], help="how many, each by itself")
    parser.add_argument("--iterations", type=int, default=20_000, help="of all sessions together")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    asked = parser.parse_args()
    allow_many_descriptors()
    rows, status = [], []
    for sessions in asked.sessions:
        cost = run(sessions, asked.iterations)
        each, iteration = 1e6 * cost.seconds / cost.events, 1e6 * cost.seconds / cost.iterations
        rows.append([sessions, cost.iterations, cost.events, cost.seconds, each, iteration])
        status.append([sessions, 1e3 * cost.document, 1e3 * cost.again, 1e3 * cost.viewer])
    how = "the executor without processes, turns of 50 ms, iterations of 10 ms"
    if asked.json:
        tables.print_json("shell", how, (_COLUMNS, rows), (_STATUS_COLUMNS, status))
        return
    tables.table(how, _COLUMNS, rows)
    tables.table("the status document, packed", _STATUS_COLUMNS, status)


if __name__ == "__main__":
    main()
