"""What a controller does with sessions' reports, on processes that can really be stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.users import Users, UserTotals
from sharedkernel.protocol import Limits, Memory
from tests.executor.devices.support import make_controller, make_hello, make_process
from tests.executor.dispatch.test_lease_renewal import DEVICE, MIB, Notebook
from tests.executor.harness import until

MEMORY = Memory(persistent=MIB, ephemeral=MIB, framework=0)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_who_does_not_come_keeps_what_they_had() -> None:
    """The file is written as a whole, and keeps the totals of users who are away."""
    users, away = Users(), UserTotals(user="ada", attained=2.0, iterations=3, peak_bytes=4)
    users.recall([away], {})
    users.set_limits(Limits(user="grace"))
    first, second = users.totals({}).users
    assert (first, second.user) == (away, "grace")


@pytest.mark.parametrize(
    "report",
    [make_hello("ada", memory=MEMORY), protocol.DeviceWantWithdrawnReport(), protocol.CellClosedReport(memory=MEMORY)],
    ids=lambda report: type(report).__name__,
)
async def test_who_was_stopped_and_holds_nothing_runs_again(
    tmp_path: Path, sleepers: list[int], report: protocol.Message
) -> None:
    """Its report was under way when it was stopped, or it has connected anew: no grant would resume it."""
    controller = make_controller(HostLimits(DEVICE), tmp_path, quantum=0.01, preempt_patience=0.01)
    try:
        ada, grace = (
            make_process(name, pid=pid, limits=Limits(user=name))
            for name, pid in zip(("ada", "grace"), sleepers, strict=True)
        )
        for process in (ada, grace):
            controller.add(process)
            controller.handle(process, protocol.CellOpenedReport())
            controller.handle(process, protocol.DeviceWantedReport(memory=MEMORY, data_bytes=0))
        await until(lambda: is_stopped(ada.pid), "the holder is stopped for the other")
        if isinstance(report, protocol.SessionHello):
            controller.take_over(ada, report)
        else:
            controller.handle(ada, report)
        await until(lambda: not is_stopped(ada.pid), "it runs again")
    finally:
        controller.close()


async def test_who_waits_for_a_session_that_greets_anew_is_answered(tmp_path: Path) -> None:
    """It has lost the command to offload: the request is refused with that reason, and may be repeated."""
    controller = make_controller(HostLimits(DEVICE), tmp_path)
    try:
        notebook = Notebook(controller, {}, "p", "ada")
        notebook.run_cell(90 * MIB)
        asking = asyncio.create_task(controller.offloads.request(notebook.process))
        await asyncio.sleep(0)
        assert b"Offload" in notebook.commands[-1]
        controller.take_over(notebook.process, make_hello("p", memory=notebook.memory))
        with pytest.raises(Refused, match="connection was lost") as refused:
            await asking
        assert refused.value.reason == "busy"
    finally:
        controller.close()


async def test_who_was_stopped_runs_on_without_an_executor(tmp_path: Path, sleepers: list[int]) -> None:
    """One that stops leaves nobody stopped, whether or not another comes."""
    controller = make_controller(HostLimits(DEVICE), tmp_path, quantum=0.01, preempt_patience=0.01)
    try:
        for name, pid in zip(("ada", "grace"), sleepers, strict=True):
            process = make_process(name, pid=pid, limits=Limits(user=name))
            controller.add(process)
            controller.handle(process, protocol.CellOpenedReport())
            controller.handle(process, protocol.DeviceWantedReport(memory=MEMORY, data_bytes=0))
        await until(lambda: is_stopped(sleepers[0]), "the holder is stopped for the other")
    finally:
        controller.close()
    await until(lambda: not is_stopped(sleepers[0]), "it runs again")


async def test_a_user_hears_of_memory_that_does_not_come_back(tmp_path: Path) -> None:
    """Its cell waits in vain, so that somebody has to give up."""
    controller = make_controller(HostLimits(DEVICE), tmp_path)
    try:
        notebook = Notebook(controller, {}, "p", "ada")
        notebook.open(0)
        notebook.want(0)
        hello = make_hello("p", memory=Memory(), offloaded_bytes=MIB, cell_open=True)
        controller.take_over(notebook.process, hello)
        notebook.commands.clear()
        for _ in range(20):
            controller.handle(notebook.process, protocol.NotRestoredReport(memory=Memory()))
        assert sum(b"could not be brought back" in command for command in notebook.commands) == 1
    finally:
        controller.close()
