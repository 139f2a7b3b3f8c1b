"""Who is asked for a grant that is not used."""

from __future__ import annotations

import pytest

from sharedkernel.scheduling.model.actions import ForceYield, Revoke
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.events import HolderIdle
from sharedkernel.scheduling.model.types import SessionId
from sharedkernel.scheduling.policies.registry import POLICIES
from tests.scheduling.desk import Desk


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_holder_yields_at_once_where_grants_are_asked_back(policy: str) -> None:
    """While somebody waits, and once only: a policy that lets cells end asks for nothing."""
    desk = Desk(SchedulerConfig(capacity=1000, policy=policy))
    for name in ("ada", "grace"):
        desk.ready(name)
    desk.want("ada", ephemeral=10)
    assert desk.send(HolderIdle(session=SessionId("ada"))) == [], "nobody waits"
    desk.want("grace", ephemeral=10)
    is_asked = POLICIES[policy].is_preemptive
    assert desk.scheduler.is_contended is is_asked
    asked = desk.send(HolderIdle(session=SessionId("ada")))
    assert [action for action in asked if isinstance(action, ForceYield)] == [
        ForceYield(session=SessionId("ada"))
    ] * is_asked
    assert sum(isinstance(action, Revoke) for action in asked) <= is_asked
    assert not any(isinstance(action, ForceYield) for action in desk.send(HolderIdle(session=SessionId("ada"))))
