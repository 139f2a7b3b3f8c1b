"""The session's state machine: what the tables say is what happens, and what the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.errors import InvalidTransition
from sharedkernel.scheduling import MemoryProfile, SessionId, SessionState, UserId
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.transitions import DECISIONS, TRANSITIONS
from sharedkernel.scheduling.model.types import ACTIVE_STATES
from tests.scheduling.desk import Desk

ADA = SessionId("ada")
SMALL = MemoryProfile(ephemeral=10)
EVENTS: list[events.SessionEvent] = [
    events.SessionStarted(session=ADA, user=UserId("ada"), domain="all"),
    events.CellOpened(session=ADA),
    events.DeviceWanted(session=ADA, memory=SMALL),
    events.DeviceWantWithdrawn(session=ADA),
    events.GrantReleased(session=ADA, at="boundary", memory=SMALL),
    events.HolderIdle(session=ADA),
    events.ProcessStopped(session=ADA, memory=SMALL, live_bytes=5),
    events.MemoryMeasured(session=ADA, memory=SMALL),
    events.CellClosed(session=ADA, memory=SMALL),
    events.OffloadRequested(session=ADA),
    events.Offloaded(session=ADA, memory=SMALL, offloaded=5),
    events.OffloadDeclined(session=ADA),
    events.Restored(session=ADA, memory=SMALL),
    events.NotRestored(session=ADA, memory=SMALL),
    events.CellInterrupted(session=ADA),
    events.SessionDetached(session=ADA, detached=True),
    events.SessionEnded(session=ADA),
    events.WorkForeseen(session=ADA, source="abc", remaining_iterations=3),
    events.GrantMeasured(session=ADA, iterations=3, utilisation=0.5),
    events.UsedWithoutGrant(session=ADA, seconds=0.5),
]


def bring(desk: Desk, state: SessionState) -> None:
    """Bring ada's session to a state."""
    if state is SessionState.DEAD:
        return
    if state is SessionState.WAITING:
        desk.keep("bob", size=995)  # nearly everything
    elif state is SessionState.QUEUED:
        desk.begin("bob", ephemeral=10)
    desk.start("ada")
    if state in (SessionState.OFFLOADED, SessionState.RESTORING):
        desk.send(events.Offloaded(session=ADA, memory=SMALL, offloaded=5))
    if state not in (SessionState.IDLE, SessionState.OFFLOADED):
        desk.send(events.CellOpened(session=ADA))
    if state in (*ACTIVE_STATES, SessionState.WAITING):
        desk.want("ada", 10)
    if state is SessionState.PREEMPTING:
        desk.at(desk.now + 1).begin("bob", ephemeral=10)
    assert desk.state("ada") == state


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", SessionState)
def test_events_are_legal_exactly_where_the_table_says(
    sched: Desk, state: SessionState, event: events.SessionEvent
) -> None:
    """A legal event is taken in; any other raises with the session's story and changes nothing."""
    bring(sched, state)
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
