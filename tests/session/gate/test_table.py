"""The gate's tables: every state and input, every stop, reason and look."""

from __future__ import annotations

from itertools import product

import pytest

from sharedkernel.ipc.shared_page import Turn
from sharedkernel.session.gate.table import AT_BOUNDARY, AT_FORCE_SIGNAL, TRANSITIONS, Input, Look, Reason, Step


def test_a_grant_begins_only_where_one_is_wanted_and_ends_only_by_a_release() -> None:
    """Or with the session itself."""
    into = {pair for pair, turn in TRANSITIONS.items() if turn is Turn.HOLDING}
    out = {given for (turn, given), then in TRANSITIONS.items() if turn is Turn.HOLDING and then is not turn}
    assert into == {(Turn.WANTING, Input.GRANTED)}
    assert out == {Input.RELEASED, Input.DISABLED}


@pytest.mark.parametrize("turn", [turn for turn in Turn if turn is not Turn.DISABLED])
def test_every_state_leads_back_to_idle(turn: Turn) -> None:
    """And nothing leads back from the end."""
    reached = {turn}
    for _ in Turn:
        reached |= {then for (before, _), then in TRANSITIONS.items() if before in reached}
    assert {Turn.IDLE, Turn.HOLDING} <= reached
    assert all(then is Turn.DISABLED for (before, _), then in TRANSITIONS.items() if before is Turn.DISABLED)


@pytest.mark.parametrize("steps", [AT_BOUNDARY, AT_FORCE_SIGNAL])
def test_what_looks_at_dispatch_never_finds_the_mode_put_in_for_memory(
    steps: dict[Reason, tuple[Step, Step, Step]],
) -> None:
    """It loses the device only to others who wait, and what is firm never in the middle of an iteration."""
    for reason, look in product(Reason, (Look.SOFT, Look.FIRM)):
        assert steps[reason][look] is not Step.PUT_IN
        assert steps[reason][look] is not Step.RELEASE or reason is Reason.PREEMPTED
    assert AT_FORCE_SIGNAL[Reason.PREEMPTED][Look.FIRM] is Step.PASS
