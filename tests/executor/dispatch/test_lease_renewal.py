"""Leases that are renewed for those concerned are those that looking at everybody gives."""

from __future__ import annotations

import asyncio
import heapq
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulate.shell import SimulatedTime
from sharedkernel import protocol
from sharedkernel.errors import InvalidTransition
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.devices.leases import IDLE_GROWTH_BYTES, NUM_HOLDERS, Leases, UserMemory
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import quota_of, used_by
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.protocol import Allowance, Device, Limits, Memory
from tests.executor.devices.support import make_controller, make_process

MIB = 1 << 20
DEVICE = Device(name="host", kind="host", capacity_bytes=600 * MIB, reserve_bytes=0)
USERS = ("ada", "bob", "cleo", "dan", "eve")
#: called between two steps
Check = Callable[[HostLimits, SessionController], None]
#: no process has it, as it is one more than the system gives out
NO_PID = 1 << 22


def leases_of(sessions: Iterable[SessionHandle], shelves: dict[str, int]) -> dict[str, Allowance]:
    """Return what all sessions are leased by looking at every one of them."""
    by_user: dict[str, list[SessionHandle]] = {}
    for session in sessions:
        by_user.setdefault(session.user or "", []).append(session)
    held = {user: size for user, size in shelves.items() if size}
    outstanding = 0
    for user, own in by_user.items():
        largest = max(session.counted.outstanding for session in own)
        outstanding = max(outstanding, largest)
        held[user] = held.get(user, 0) + used_by(own) - largest + sum(session.memory.framework for session in own)
    free = max(0, DEVICE.usable_bytes - sum(held.values()) - outstanding)
    holders = heapq.nsmallest(NUM_HOLDERS + 1, held.items(), key=lambda holder: (-holder[1], holder[0]))
    leases = {}
    for user, own in by_user.items():
        quota = quota_of(own[0].limits, DEVICE)
        used = shelves.get(user, 0) + used_by(own)
        remainder = max(0, min(quota - used, free))
        working = [session for session in own if session.page.words[Word.TURN] != Turn.IDLE] or own
        for session in own:
            counted = session.counted
            leases[session.process] = Allowance(
                limit_bytes=counted.persistent
                + max(counted.live, counted.needed)
                + (remainder if session in working else min(remainder, IDLE_GROWTH_BYTES)),
                quota_bytes=quota,
                others_bytes=shelves.get(user, 0) + used_by([other for other in own if other is not session]),
                capacity_bytes=DEVICE.capacity_bytes,
                holders=tuple(holder for holder in holders if holder[0] != user)[:NUM_HOLDERS],
            )
    return leases


class CheckedDevice(HostLimits):
    """Leases to those whom it is told of, and compares that with leases to all."""

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self.controller: SessionController
        self.shelves: dict[str, int] = {}
        #: what each process was leased last
        self.leases: dict[str, Allowance] = {}
        #: leases, and what they should have been
        self.differences: list[tuple[Allowance, Allowance]] = []
        self._leases = Leases(DEVICE, lambda process, allowance: self.leases.update({process.process: allowance}))

    def update(self, users: Iterable[UserMemory], others: Iterable[UserMemory] = ()) -> None:
        users = list(users)
        super().update(users, others)
        expected = self.all_leases()
        for memory in users:
            for process in memory.sessions:
                if self.leases[process.process] != expected[process.process]:  # what is raised here is only logged
                    self.differences.append((self.leases[process.process], expected[process.process]))

    def all_leases(self) -> dict[str, Allowance]:
        return leases_of(self.controller.sessions.values(), self.shelves)


class Notebook:
    """A session that does what it is told, as far as it may."""

    def __init__(self, controller: SessionController, shelves: dict[str, int], name: str, user: str) -> None:
        self.controller, self.shelves = controller, shelves
        self.process = make_process(name, pid=NO_PID, limits=Limits(user=user, offload_after=0.0))
        self.process.transport = cast(asyncio.Transport, self)
        self.commands: list[bytes] = []
        self.words = self.process.page.words
        self.is_open = False
        self.memory = Memory()
        self.away = 0
        controller.add(self.process)
        controller.limits.update(self.process)

    def write(self, data: bytes) -> None:
        self.commands.append(data)
        if b"Granted" in data:
            self.words[Word.TURN] = Turn.HOLDING

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        """Stay connected."""

    def answer(self) -> None:
        """Carry out what the executor asks for."""
        commands, self.commands = self.commands, []
        for command in commands:
            if b"Offload" in command:
                self.away, self.memory = self.memory.persistent, Memory(ephemeral=self.memory.ephemeral)
                self.report(protocol.OffloadedReport(memory=self.memory, offloaded_bytes=self.away))
            elif b"Restore" in command:
                self.memory = Memory(persistent=self.away, ephemeral=self.memory.ephemeral)
                self.report(protocol.RestoredReport(memory=self.memory))

    def report(self, message: protocol.Message) -> None:
        try:
            self.controller.handle(self.process, message)
        except InvalidTransition:
            """The executor would hang up."""

    def open(self, size: int) -> None:
        if not self.is_open:
            self.is_open, self.words[Word.TURN] = True, Turn.READY
            self.report(protocol.CellOpenedReport())

    def want(self, size: int) -> None:
        if self.is_open and self.words[Word.TURN] == Turn.READY:
            self.words[Word.TURN] = Turn.WANTING
            self.report(protocol.DeviceWantedReport(memory=self.memory, data_bytes=0))

    def use(self, size: int) -> None:
        if self.words[Word.TURN] == Turn.HOLDING:
            self.words[Word.LIVE] = size

    def release(self, size: int) -> None:
        self._release("boundary", Memory(persistent=size, ephemeral=size // 2, framework=size // 8))

    def yield_grant(self, size: int) -> None:
        self._release("yield", self.memory)

    def _release(self, at: Any, memory: Memory) -> None:
        if self.words[Word.TURN] != Turn.HOLDING:
            return
        self.memory, self.words[Word.TURN] = memory, Turn.READY
        live = self.words[Word.LIVE] = self.words[Word.LIVE] if at == "yield" else 0
        self.report(protocol.GrantReleasedReport(at=at, memory=memory, live_bytes=live))

    def close(self, size: int) -> None:
        if self.is_open:
            self._release("cell", self.memory)
            self.is_open, self.words[Word.TURN], self.words[Word.LIVE] = False, Turn.IDLE, 0
            self.report(protocol.CellClosedReport(memory=self.memory))

    def run_cell(self, size: int) -> None:
        for step in (self.open, self.want, self.use, self.release, self.close):
            step(size)

    def shelve(self, size: int) -> None:
        user = self.process.user or ""
        self.shelves[user] = size
        self.controller.shelf_changed(user, size)

    def set_quota(self, size: int) -> None:
        self.controller.configure(Limits(user=self.process.user or "", quota_bytes=size or None, offload_after=0.0))
        self.controller.limits.update()


#: what takes a cell further is the most frequent
STEPS = (
    *(3 * ("open", "want", "use", "release", "want", "close", "pass", "run_cell", "run_cell")),
    *("start", "start", "yield_grant", "shelve", "set_quota", "end"),
)


def draw_steps() -> st.SearchStrategy[list[tuple[str, int, int]]]:
    """Return steps, each of one session and with some bytes."""
    step = st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.sampled_from([0, MIB, 90 * MIB, 300 * MIB]))
    return st.lists(step, min_size=30, max_size=60)


def run_steps(steps: list[tuple[str, int, int]], check: Check | None = None) -> None:
    """Do the *steps* one after another, in simulated time, and compare the leases; *check* is called after each."""
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=SimulatedTime) as runner:
        runner.run(_run_steps(steps, Path(directory), check))


async def _run_steps(steps: list[tuple[str, int, int]], directory: Path, check: Check | None) -> None:
    device = CheckedDevice()
    controller = make_controller(device, directory, preempt_patience=3600.0, memory_quantum=2.0)
    device.controller = controller
    notebooks: list[Notebook] = []
    pages = []
    try:
        for number, (step, which, size) in enumerate([("start", 0, 0), *steps]):
            if step == "start" or not notebooks:
                notebook = Notebook(controller, device.shelves, f"p{number}", USERS[which % len(USERS)])
                notebooks.append(notebook)
                pages.append(notebook.process.page)
            elif step == "end":
                controller.remove(notebooks.pop(which % len(notebooks)).process)
            elif step == "pass":
                await asyncio.sleep(size / MIB)
            else:
                getattr(notebooks[which % len(notebooks)], step)(size)
            while any(notebook.commands for notebook in notebooks):
                for notebook in notebooks:
                    notebook.answer()
            assert not device.differences
            if check is not None:
                check(device, controller)
        controller.limits.update()  # a report that a grant was released renews nothing; another follows it
        await asyncio.sleep(3.0)
        expected = device.all_leases()
        assert {name: device.leases[name] for name in expected} == expected
    finally:
        controller.close()
        for page in pages:
            page.close()


@given(draw_steps())
def test_leases_of_those_concerned_are_as_if_all_were_renewed(steps: list[tuple[str, int, int]]) -> None:
    """Whatever sessions and shelves do; the others' leases are the same soon."""
    run_steps(steps)
