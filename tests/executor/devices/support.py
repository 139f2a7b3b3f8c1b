"""Session processes and a session control that records what a device does to them."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.executor.processes.process import SessionHandle, start_time
from sharedkernel.executor.processes.programs import Program
from sharedkernel.ipc.shared_page import Page
from sharedkernel.protocol import Limits
from sharedkernel.scheduling import SchedulerConfig

GIB = 1 << 30


def make_process(name: str = "p", *, pid: int = 1000, limits: Limits | None = None) -> SessionHandle:
    """Return a process that serves a session of one user (within an event loop)."""
    limits = limits or Limits(user="ada")
    return SessionHandle(
        process=name,
        page=Page.create(name),
        pid=pid,
        started=start_time(pid) or 0,
        ready=asyncio.get_running_loop().create_future(),
        session=f"session-{name}",
        user=limits.user,
        limits=limits,
    )


def make_hello(process: str = "", **fields: Any) -> protocol.SessionHello:
    """Return the greeting of a session's process, which has and does nothing but what *fields* say."""
    fields = {"memory": protocol.Memory()} | fields
    return protocol.SessionHello(
        version=protocol.PROTOCOL_VERSION, process=process, connection={}, data_bytes=0, **fields
    )


@contextlib.contextmanager
def no_file_opens() -> Iterator[None]:
    """Let this process open no file."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def make_controller(device: ServedDevice, directory: Path, **config: float) -> SessionController:
    """Return a controller of a device, whose files are in *directory*."""
    scheduler = SchedulerConfig(capacity=device.device.capacity_bytes, **config)  # type: ignore[arg-type]
    log, history = EventLog(directory / "events.jsonl"), WorkloadHistory(directory)
    return SessionController(device, scheduler, log, history, lambda *_: None, directory / "stopped")


class Recorder:
    """The control of *processes*."""

    def __init__(self, *processes: SessionHandle) -> None:
        self.processes = list(processes)
        #: device-seconds that they were served, by session
        self.served = {process.session or "": 0.0 for process in processes}
        self.done: list[tuple[str, str, Any]] = []
        #: bytes on shelves, by user
        self.shelves: Counter[str] = Counter()
        self.shelf_of = self.shelves.__getitem__

    def sessions(self) -> Iterable[SessionHandle]:
        return self.processes

    def warn(self, process: SessionHandle, text: str) -> None:
        self.done.append(("warn", process.process, text))

    def offload(self, process: SessionHandle) -> None:
        self.done.append(("offload", process.process, None))

    def end(self, process: SessionHandle, reason: str, message: str) -> None:
        self.done.append(("end", process.process, (reason, message)))

    def list_programs(self, process: SessionHandle, programs: Sequence[Program]) -> None:
        process.programs = tuple(programs)

    def attained(self) -> Mapping[str, float]:
        return dict(self.served)

    def charge(self, process: SessionHandle, seconds: float) -> None:
        self.served[process.session or ""] += seconds
        self.done.append(("charge", process.process, seconds))
