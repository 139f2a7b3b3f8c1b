"""What a controller does with sessions' reports, on processes that can really be stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.dispatch.users import Users, UserTotals
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.protocol import Device, Limits, Memory
from sharedkernel.scheduling import SchedulerConfig
from tests.executor.devices.support import GIB, make_process
from tests.executor.harness import until

MIB = 1 << 20
MEMORY = Memory(persistent=MIB, ephemeral=MIB, framework=0)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


async def runs(pid: int) -> bool:
    return _state(pid) != "T"


HELLO = protocol.SessionHello(
    version=protocol.PROTOCOL_VERSION, process="ada", connection={}, memory=MEMORY, data_bytes=0
)


def test_who_does_not_come_keeps_what_they_had() -> None:
    """The file is written as a whole, and keeps the totals of users who are away."""
    users, away = Users(), UserTotals(user="ada", attained=2.0, iterations=3, peak_bytes=4)
    users.recall([away], {})
    users.set_limits(Limits(user="grace"))
    first, second = users.totals({}).users
    assert (first, second.user) == (away, "grace")


@pytest.mark.parametrize(
    "report",
    [HELLO, protocol.DeviceWantWithdrawnReport(), protocol.CellClosedReport(memory=MEMORY)],
    ids=lambda report: type(report).__name__,
)
async def test_who_was_stopped_and_holds_nothing_runs_again(
    tmp_path: Path, sleepers: list[int], report: protocol.Message
) -> None:
    """Its report was under way when it was stopped, or it has connected anew: no grant would resume it."""
    config = SchedulerConfig(capacity=GIB, quantum=0.01, preempt_patience=0.01)
    served = HostLimits(Device(name="host", kind="host", capacity_bytes=GIB, reserve_bytes=0))
    controller = SessionController(
        served, config, EventLog(tmp_path / "events.jsonl"), WorkloadHistory(tmp_path), lambda *_: None, tmp_path
    )
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
        await until(lambda: runs(ada.pid), "it runs again")
    finally:
        controller.close()
