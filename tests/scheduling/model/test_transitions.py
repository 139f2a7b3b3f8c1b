"""The session's state machine: what the tables say is what happens, and what the documentation shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling import MemoryProfile, SessionId, SessionState, UserId
from sharedkernel.scheduling.model.events import (
    CellClosed,
    CellInterrupted,
    CellOpened,
    DeviceWanted,
    DeviceWantWithdrawn,
    GrantMeasured,
    GrantReleased,
    HolderIdle,
    MemoryMeasured,
    NotRestored,
    OffloadDeclined,
    Offloaded,
    OffloadRequested,
    ProcessStopped,
    Restored,
    SessionDetached,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    UsedWithoutGrant,
    WorkForeseen,
)
from sharedkernel.scheduling.model.transitions import DECISIONS, TRANSITIONS
from tests.scheduling.desk import Desk

ADA = SessionId("ada")
SMALL = MemoryProfile(ephemeral=10)
EVENTS: list[SessionEvent] = [
    SessionStarted(session=ADA, user=UserId("ada"), domain="all"),
    CellOpened(session=ADA),
    DeviceWanted(session=ADA, memory=SMALL),
    DeviceWantWithdrawn(session=ADA),
    GrantReleased(session=ADA, at="boundary", memory=SMALL),
    HolderIdle(session=ADA),
    ProcessStopped(session=ADA, memory=SMALL, live_bytes=5),
    MemoryMeasured(session=ADA, memory=SMALL),
    CellClosed(session=ADA, memory=SMALL),
    OffloadRequested(session=ADA),
    Offloaded(session=ADA, memory=SMALL, offloaded=5),
    OffloadDeclined(session=ADA),
    Restored(session=ADA, memory=SMALL),
    NotRestored(session=ADA, memory=SMALL),
    CellInterrupted(session=ADA),
    SessionDetached(session=ADA, detached=True),
    SessionEnded(session=ADA),
    WorkForeseen(session=ADA, source="abc", remaining_iterations=3),
    GrantMeasured(session=ADA, iterations=3, utilisation=0.5),
    UsedWithoutGrant(session=ADA, seconds=0.5),
]


def dead(desk: Desk) -> None:
    """Nothing to do."""


def idle(desk: Desk) -> None:
    """Bring ada's session there."""
    desk.start("ada")


def ready(desk: Desk) -> None:
    """Open its cell."""
    idle(desk)
    desk.open("ada")


def waiting(desk: Desk) -> None:
    """Let another session hold nearly everything."""
    desk.keep("bob", size=995)
    ready(desk)
    desk.want("ada", 10)


def queued(desk: Desk) -> None:
    """Let another session run."""
    desk.begin("bob", ephemeral=10)
    ready(desk)
    desk.want("ada", 10)


def running(desk: Desk) -> None:
    """Let it run."""
    ready(desk)
    desk.want("ada", 10)


def preempting(desk: Desk) -> None:
    """Let another come after a while."""
    running(desk)
    desk.at(desk.now + 1).begin("bob", ephemeral=10)


def offloaded(desk: Desk) -> None:
    """Let it report that its memory was moved away."""
    idle(desk)
    desk.send(Offloaded(session=ADA, memory=SMALL, offloaded=5))


def restoring(desk: Desk) -> None:
    """Open its cell after that."""
    offloaded(desk)
    desk.send(CellOpened(session=ADA))


PREPARE: dict[SessionState, Callable[[Desk], None]] = {
    SessionState.DEAD: dead,
    SessionState.OFFLOADED: offloaded,
    SessionState.RESTORING: restoring,
    SessionState.IDLE: idle,
    SessionState.READY: ready,
    SessionState.WAITING: waiting,
    SessionState.QUEUED: queued,
    SessionState.RUNNING: running,
    SessionState.PREEMPTING: preempting,
}


def test_there_is_a_way_into_every_state() -> None:
    """The tests below cover all states."""
    assert set(PREPARE) == set(SessionState)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", SessionState)
def test_events_are_legal_exactly_where_the_table_says(sched: Desk, state: SessionState, event: SessionEvent) -> None:
    """A legal event is taken in; any other raises with the session's story and changes nothing."""
    PREPARE[state](sched)
    assert state is SessionState.DEAD or sched.state("ada") == state
    if (state, type(event)) in TRANSITIONS:
        sched.send(event)
        return
    before = sched.scheduler.snapshot(sched.now)
    with pytest.raises(InvalidTransition) as caught:
        sched.send(event)
    assert sched.scheduler.snapshot(sched.now) == before
    story = sched.scheduler.story(ADA)
    assert str(caught.value) == str(InvalidTransition("ada", state, type(event).__name__, story))
    assert bool(story) == (state is not SessionState.DEAD)


def transition_table() -> str:
    """Return both tables as Markdown."""
    events = list(dict.fromkeys(event for _, event in TRANSITIONS))
    lines = [
        f"| state | {' | '.join(event.__name__ for event in events)} |",
        f"|---|{'---|' * len(events)}",
    ]
    shown = "dead idle ready waiting queued running preempting offloaded restoring"
    for state in map(SessionState, shown.split()):
        cells = (TRANSITIONS.get((state, event)) for event in events)
        lines.append(f"| **{state}** | {' | '.join(cell or '' for cell in cells)} |")
    lines += ["", "| the scheduler decides to | from | to |", "|---|---|---|"]
    lines += [f"| {decision} | {before} | {after} |" for decision, (before, after) in DECISIONS.items()]
    return "\n".join(lines)


def test_the_documentation_shows_these_tables() -> None:
    """The tables in docs/session-states.md are the code's own."""
    text = (Path(__file__).parents[3] / "docs" / "session-states.md").read_text()
    shown = text.split("<!-- session states -->")[1]
    assert shown.strip() == transition_table()
