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


@given(draw_steps())
def test_the_document_is_new_after_each_event(steps: list[tuple[str, int, int]]) -> None:
    """Also for those who may not see everything; all bytes of users and of the device are sums."""
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
        status = kept[0].document()
        assert status == anew.document()
        for user in status.users:
            own = [session for session in status.sessions if session.user == user.name]
            for kind in ("persistent_bytes", "ephemeral_bytes", "framework_bytes", "live_bytes", "offloaded_bytes"):
                assert getattr(user, kind) == sum(getattr(session, kind) or 0 for session in own), kind
            assert MEMORY.value(user) == sum(map(MEMORY.value, own)) + user.shelf_bytes
            assert user.quota_used_bytes == user.persistent_bytes + user.live_bytes + user.shelf_bytes
        used = sum(map(MEMORY.value, status.users))
        assert status.device.used_bytes == min(used, status.device.capacity_bytes)
        views = [builder.view("ada") for builder in (kept[0], anew)]
        first, second = (replace(view, timeline=views[0].timeline) for view in views)  # it has the time of day
        assert first == second

    run_steps(steps, check)
