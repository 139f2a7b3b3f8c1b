"""Who follows the holder of a grant: said ahead, named with a revocation, and a fact once it has happened."""

from __future__ import annotations

from typing import Any

import pytest

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling import SchedulerConfig, SessionId, SessionState
from sharedkernel.scheduling.model.actions import Action, Grant, Heir, Revoke
from sharedkernel.scheduling.model.events import GrantReleased
from tests.scheduling.desk import Desk

MIB = 1 << 20
ADA, BOB, CLEO = SessionId("ada"), SessionId("bob"), SessionId("cleo")


def at_work(*names: str, **config: Any) -> Desk:
    """Return a desk where the first of *names* holds the device, and the others want it."""
    desk = Desk(SchedulerConfig(**{"capacity": 1000 * MIB, "names_heirs": True, **config}))
    desk.start(*names)
    desk.open(*names)
    for name in names:
        desk.want(name, 100 * MIB, persistent=50 * MIB)
    return desk


def until_revoked(desk: Desk) -> list[Action]:
    """Let time pass until the holder's grant is revoked, and return what was decided then."""
    decided: list[Action] = []
    while not any(isinstance(action, Revoke) for action in decided):
        decided = desk.tick_at_deadline()
    return decided


def hand_on(desk: Desk, giver: SessionId, heir: SessionId, *, persistent: int | None = None) -> list[Action]:
    memory = desk.profile(giver, persistent=persistent)
    return desk.send(GrantReleased(session=giver, at="boundary", memory=memory, heir=heir))


def grants(decided: list[Action]) -> list[SessionId]:
    return [action.session for action in decided if isinstance(action, Grant)]


def test_a_revocation_names_who_follows() -> None:
    """With the bytes that the holder may keep: what it has, and what is free beside all sessions and lanes."""
    desk = at_work(ADA, BOB)
    assert desk.scheduler.heir(ADA) == BOB
    decided = until_revoked(desk)
    assert decided == [Revoke(session=ADA), Heir(session=ADA, heir=BOB, generation=1, limit=750 * MIB)]


def test_nobody_is_named_where_nothing_asks_for_it() -> None:
    """A scheduler whose sessions cannot hand the device on themselves decides as ever."""
    desk = at_work(ADA, BOB, names_heirs=False)
    assert until_revoked(desk) == [Revoke(session=ADA)]


def test_who_is_named_is_who_would_be_granted() -> None:
    """The plain way leads to the same session."""
    desk = at_work(ADA, BOB, CLEO)
    named = next(action for action in until_revoked(desk) if isinstance(action, Heir))
    assert grants(desk.release(ADA)) == [named.heir]


def test_handing_on_is_a_fact() -> None:
    """The heir holds the device from then on, and the next hand-over has a larger generation."""
    desk = at_work(ADA, BOB)
    until_revoked(desk)
    assert grants(hand_on(desk, ADA, BOB)) == [BOB]
    assert (desk.state(ADA), desk.state(BOB)) == (SessionState.READY, SessionState.RUNNING)
    desk.want(ADA, 100 * MIB)
    named = next(action for action in until_revoked(desk) if isinstance(action, Heir))
    assert (named.session, named.heir, named.generation) == (BOB, ADA, 2)


def test_a_fact_holds_although_the_giver_has_grown() -> None:
    """The heir runs; whoever comes next finds what is left."""
    desk = at_work(ADA, BOB)
    until_revoked(desk)
    assert grants(hand_on(desk, ADA, BOB, persistent=950 * MIB)) == [BOB]


def test_a_fact_holds_although_another_would_be_chosen_by_now() -> None:
    """A session of a higher class came after the hand-over, and before anybody heard of it."""
    desk = at_work(ADA, BOB, policy="priority")
    until_revoked(desk)
    desk.user("cleo", priority=3)
    desk.start(CLEO)
    desk.open(CLEO)
    desk.want(CLEO, 100 * MIB)
    assert desk.scheduler.heir(ADA) == CLEO
    assert grants(hand_on(desk, ADA, BOB)) == [BOB]


def test_a_session_is_named_once_while_it_wants_the_device() -> None:
    """So it has at most one naming to follow; each is void with the next event."""
    desk = at_work(ADA, BOB)
    until_revoked(desk)
    assert not any(isinstance(action, Heir) for action in desk.tick())
    assert desk.scheduler.heir(ADA) == BOB
    assert grants(desk.release(ADA)) == [BOB]


@pytest.mark.parametrize("config", [{"parallel_lanes": 2}, {"policy": "fifo"}], ids=["lanes", "fifo"])
def test_nobody_follows_for_sure_in_several_lanes_or_where_places_are_kept(config: dict[str, Any]) -> None:
    """Then more than the run queue decides."""
    assert at_work(ADA, BOB, **config).scheduler.heir(ADA) is None


def test_nobody_follows_for_sure_while_others_wait_for_memory() -> None:
    """What is released may be theirs."""
    desk = at_work(ADA, BOB)
    desk.start(CLEO)
    desk.open(CLEO)
    desk.want(CLEO, 100 * MIB, persistent=900 * MIB)
    assert desk.state(CLEO) == SessionState.WAITING
    assert desk.scheduler.heir(ADA) is None


def test_who_holds_nothing_has_no_heir() -> None:
    """Nor has a holder for whose place nobody waits, or a session that is not known."""
    desk = at_work(ADA)
    assert [desk.scheduler.heir(name) for name in (ADA, BOB)] == [None, None]
    desk.start(BOB)
    desk.open(BOB)
    desk.want(BOB, 100 * MIB)
    assert desk.scheduler.heir(BOB) is None


@pytest.mark.parametrize("heir", ["cleo", "ada", "nobody"])
def test_the_device_passes_to_nobody_who_does_not_wait_for_it(heir: str) -> None:
    """That is a caller's bug, and changes nothing."""
    desk = at_work(ADA, BOB)
    desk.start(CLEO)
    until_revoked(desk)
    before = desk.scheduler.snapshot(desk.now)
    with pytest.raises(InvalidTransition, match=f"to {heir}"):
        hand_on(desk, ADA, SessionId(heir))
    assert desk.scheduler.snapshot(desk.now) == before
    desk.scheduler.validate()


@pytest.mark.parametrize("at", ["cell", "yield"])
def test_the_device_is_handed_on_at_boundaries_only(at: Any) -> None:
    """What is live of an iteration would be in the way."""
    with pytest.raises(ValueError, match="at a boundary only"):
        GrantReleased(session=ADA, at=at, memory=at_work(ADA).profile(ADA), heir=BOB)
