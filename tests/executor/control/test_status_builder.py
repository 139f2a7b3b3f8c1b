"""The status document that is kept is the one that would be built."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given

from sharedkernel.executor.control.status_builder import StatusBuilder
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.isolation.policy import Isolation, IsolationOptions
from tests.executor.dispatch.test_limits import draw_steps, run_steps


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
        if controller.revision == revision:  # figures may be as old as they may be
            return
        revision = controller.revision
        anew = StatusBuilder(device, isolation, controller)
        assert kept[0].document() == anew.document()
        assert kept[0].view("ada") == anew.view("ada")

    run_steps(steps, check)
