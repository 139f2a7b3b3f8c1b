"""The status document: the one that is kept is the one that would be built, and its figures add up."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from msgspec.structs import replace

from sharedkernel.executor.control.status_builder import StatusBuilder
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.isolation.policy import Isolation, IsolationOptions
from sharedkernel.status.figures import MEMORY
from tests.executor.dispatch.test_lease_renewal import draw_steps, run_steps
from tests.executor.harness import Executor, ExecutorProcess

MIB = 1 << 20
#: keeps some memory, and needs more in its middle
_CELL = """
import torch
kept = torch.ones({kept} << 18)
more = torch.ones({more} << 18)
del more
"""


@given(draw_steps())
def test_the_document_is_new_after_each_event(steps: list[tuple[str, int, int]]) -> None:
    """Also for those who may not see everything."""
    isolation = Isolation(IsolationOptions(isolate="off"), Path("unused"))
    kept: list[StatusBuilder] = []
    revision = 0

    def check(device: HostLimits, controller: SessionController) -> None:
        nonlocal revision
        if not kept:
            kept.append(StatusBuilder(device, isolation, controller))
        if controller.driver.revision == revision:  # figures may be as old as they may be
            return
        revision = controller.driver.revision
        anew = StatusBuilder(device, isolation, controller)
        assert kept[0].document() == anew.document()
        views = [builder.view("ada") for builder in (kept[0], anew)]
        first, second = (replace(view, timeline=views[0].timeline) for view in views)  # it has the time of day
        assert first == second

    run_steps(steps, check)


async def test_sessions_users_and_the_device_add_up(process: ExecutorProcess) -> None:
    """All bytes are sums, and nothing of idle notebooks is ephemeral, whatever their cells needed on the way."""
    async with Executor(process) as executor:
        for user, kept, more in (("ada", 40, 200), ("ada", 60, 120), ("ada", 1, 1), ("grace", 30, 90)):
            notebook = await executor.notebook(user)
            assert (await notebook.run(_CELL.format(kept=kept, more=more))).status == "ok"
        shelves = "from sharedkernel import shelf; shelf['figures'] = kept"
        assert (await notebook.run(shelves)).status == "ok"
        status = await executor.client.status()
        for user in status.users:
            own = [session for session in status.sessions if session.user == user.name]
            for kind in ("persistent_bytes", "ephemeral_bytes", "framework_bytes", "live_bytes", "offloaded_bytes"):
                assert getattr(user, kind) == sum(getattr(session, kind) for session in own), kind
            assert MEMORY.value(user) == sum(map(MEMORY.value, own)) + user.shelf_bytes
            assert user.quota_used_bytes == user.persistent_bytes + user.shelf_bytes
        by_name = {user.name: user for user in status.users}
        assert 100 * MIB < by_name["ada"].persistent_bytes < 150 * MIB
        assert by_name["ada"].ephemeral_bytes == 0
        assert by_name["grace"].shelf_bytes >= 30 * MIB
        assert status.device.used_bytes == sum(map(MEMORY.value, status.users))
        del_ = "from sharedkernel import shelf; del shelf['figures']"
        assert (await notebook.run(del_)).status == "ok"
