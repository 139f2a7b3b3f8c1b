"""A session and its programs have one turn together, whatever both do and in whatever order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.simulate.shell import SimulatedTime
from sharedkernel import protocol
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.processes.programs import Program
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.paths import STOPPED_DIRECTORY
from sharedkernel.scheduling.model.types import HOLDING_STATES, SessionState
from tests.executor.conftest import StartExecutor
from tests.executor.devices.support import make_controller, make_hello
from tests.executor.dispatch.test_lease_renewal import DEVICE, MIB, Notebook
from tests.executor.harness import Executor

#: what sessions, their programs and time do
STEPS = (
    *(3 * ("open", "want", "release", "yield_grant", "close")),
    *("withdraw", "run_cell", "interrupt", "greet", "detach"),
    *(4 * ("computes", "pass")),
    *("rests", "rests", "is_gone"),
)


class ProgramNotebook(Notebook):
    """A session with a program."""

    def __init__(self, controller: SessionController, name: str, user: str, pid: int) -> None:
        super().__init__(controller, {}, name, user)
        self.pid = pid

    def report(self, message: protocol.Message) -> None:
        self.controller.handle(self.process, message)  # what the core does not allow fails the test

    @property
    def state(self) -> SessionState:
        return next(view.state for view in self.controller.snapshot().sessions if view.id == self.process.session)

    @property
    def is_stopped(self) -> bool:
        return self.process.stopped is not None and self.process.stopped.any

    def look(self, busy: float | None) -> None:
        program = Program(root=self.pid, name="train.py", pids=(self.pid,), bytes=1, busy=busy or 0.0)
        self.controller.programs.look(self.process, () if busy is None else (program,))

    def computes(self, size: int = 0) -> None:
        self.look(0.5)

    def rests(self, size: int = 0) -> None:
        self.look(0.0)

    def is_gone(self, size: int = 0) -> None:
        self.look(None)

    def withdraw(self, size: int) -> None:
        if self.words[Word.TURN] == Turn.WANTING:
            self.words[Word.TURN] = Turn.READY
            self.report(protocol.DeviceWantWithdrawnReport())

    def interrupt(self, size: int) -> None:
        self.controller.programs.interrupt(self.process)

    def greet(self, size: int) -> None:
        turn = self.words[Word.TURN]
        is_so = {"cell_open": self.is_open, "holding": turn == Turn.HOLDING, "wanting": turn == Turn.WANTING}
        self.controller.take_over(self.process, make_hello(self.process.process, memory=self.memory, **is_so))

    def detach(self, size: int) -> None:
        self.controller.detached(self.process)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.sampled_from([0, MIB])), max_size=60))
def test_a_program_runs_in_its_sessions_turns_alone(sleepers: list[int], steps: list[tuple[str, int, int]]) -> None:
    """It is stopped only where its session does not hold the device; in the end nothing is stopped, held or wanted."""

    async def walk(directory: Path) -> None:
        controller = make_controller(HostLimits(DEVICE), directory, preempt_patience=3600.0, quantum=1.0)
        notebooks = [
            ProgramNotebook(controller, name, name, pid) for name, pid in zip(("ada", "bob"), sleepers, strict=True)
        ]
        try:
            for step, which, size in steps:
                if step == "pass":
                    await asyncio.sleep(0.7)
                else:
                    getattr(notebooks[which], step)(size)
                for notebook in notebooks:
                    notebook.answer()
                    assert not (notebook.is_stopped and notebook.state in HOLDING_STATES)
                    is_told = notebook.words[Word.TURN] == Turn.HOLDING
                    assert not is_told or notebook.state in HOLDING_STATES or notebook.process.grant.is_unsanctioned
            for notebook in notebooks:
                notebook.is_gone()
                notebook.close(0)
            await asyncio.sleep(60)
            assert [notebook.state for notebook in notebooks] == [SessionState.IDLE] * 2
            assert not any(notebook.is_stopped for notebook in notebooks)
            assert list((directory / "stopped").glob("*")) == []
        finally:
            controller.close()
            for notebook in notebooks:
                notebook.process.page.close()

    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=SimulatedTime) as runner:
        runner.run(walk(Path(directory)))


async def test_a_program_waits_for_its_session_that_is_on_its_way_out(tmp_path: Path, sleepers: list[int]) -> None:
    """Its turn would bring memory back that no cell waits for, and the next cell would wait for ever."""
    controller = make_controller(HostLimits(DEVICE), tmp_path)
    try:
        notebook = ProgramNotebook(controller, "ada", "ada", sleepers[0])
        notebook.run_cell(90 * MIB)
        asking = asyncio.create_task(controller.offloads.request(notebook.process))
        await asyncio.sleep(0)
        notebook.computes()
        notebook.answer()
        await asking
        assert notebook.state is SessionState.OFFLOADED
    finally:
        controller.close()


@pytest.mark.heavy
async def test_on_the_host_device_programs_are_left_to_the_system(start_executor: StartExecutor) -> None:
    """Nothing is stopped there while sessions take turns."""
    process, cell = start_executor(), "import torch\nfor _ in range(3000):\n    torch.ones(64, 64) @ torch.ones(64, 64)"
    start = "import subprocess, sys\nprogram = subprocess.Popen([sys.executable, '-c', 'while True: pass'])"

    async with Executor(process) as executor:
        ada, grace = await executor.notebook("ada"), await executor.notebook("grace")
        await grace.run(start)
        outcomes = await asyncio.gather(ada.run(cell), grace.run(cell))
        assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
        await grace.run("program.kill(); program.wait()")
    assert not (process.runtime_directory / STOPPED_DIRECTORY).exists()
