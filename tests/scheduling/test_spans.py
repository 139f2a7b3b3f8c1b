"""Who did what when."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sharedkernel.scheduling import Scheduler, SchedulerConfig, SessionId
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState, UserId
from sharedkernel.scheduling.spans import Activity, Span, SpanTracker
from tests.scheduling.desk import Desk
from tests.scheduling.device import Cell, Device, Notebook, endless


class Watched:
    """A desk whose spans are kept."""

    def __init__(self, **config: Any) -> None:
        self.desk = Desk(SchedulerConfig(**{"capacity": 1000, **config}))
        self.spans: list[Span] = []
        self.tracker = SpanTracker(self.spans.append)

    def at(self, now: float) -> Desk:
        """Return the desk at *now*."""
        self.look()
        self.desk.now = now
        return self.desk

    def look(self) -> None:
        self.tracker.follow(self.desk.now, self.desk.scheduler, self.desk.take_touched())


def told(spans: list[Span]) -> list[tuple[str, str, float, float]]:
    return [(span.session, str(span.activity), span.begin, span.end) for span in spans]


def test_a_turn_and_the_wait_for_it_are_spans() -> None:
    """Two sessions take turns: each has its wait, then its grant with lane, iterations and when it was revoked."""
    watched = Watched()
    watched.desk.begin("ada", ephemeral=100)
    watched.look()
    watched.at(1.0).begin("bob", ephemeral=100)
    watched.look()
    assert watched.desk.state("ada") == "preempting"
    watched.at(1.5).release("ada", iterations=7)
    watched.at(3.0).release("bob", "cell", iterations=2)
    watched.look()
    assert told(watched.spans) == [
        ("ada", "running", 0.0, 1.5),
        ("bob", "queued", 1.0, 1.5),
        ("bob", "running", 1.5, 3.0),
    ]
    first, _, last = watched.spans
    assert (first.user, first.iterations, first.revoked_at) == ("ada", 7, 1.0)
    assert (last.iterations, last.revoked_at) == (2, None)
    assert first.track != last.track  # each has a lane of its own


def test_a_grant_revoked_in_the_event_that_gave_it_is_told_so() -> None:
    """Both are new to who looks after the event."""
    watched = Watched()
    watched.desk.begin("ada", ephemeral=100)
    watched.desk.now = 1.0
    watched.desk.begin("bob", ephemeral=100)
    watched.at(1.5).release("ada")
    watched.look()
    assert watched.spans[0].revoked_at == 1.0


def test_waiting_for_memory_is_told_from_waiting_for_a_turn() -> None:
    """A session that does not fit waits; what is under way ends now, for who asks."""
    watched = Watched(capacity=100)
    watched.desk.begin(
        "ada",
        ephemeral=80,
    )
    watched.at(2.0).measure("ada", persistent=15)
    watched.desk.ready("bob")
    watched.desk.want("bob", 80, persistent=15)
    watched.at(5.0)
    watched.look()
    assert ("bob", "waiting", 2.0, 5.0) in told(list(watched.tracker.under_way(5.0)))


@pytest.mark.parametrize(("is_returning", "activity"), [(False, "awaiting_restore"), (True, "restoring")])
def test_a_restore_that_waits_is_told_from_one_under_way(is_returning: bool, activity: str) -> None:
    """The scheduler's one state is two things for people: waiting for room, and copying."""
    scheduler = Scheduler(SchedulerConfig(capacity=10))
    session = Session(id=SessionId("ada"), user=User(id=UserId("ada")), domain="all", state=SessionState.RESTORING)
    session.offload.is_returning = is_returning
    scheduler.sessions[session.id] = session
    tracker = SpanTracker(lambda span: None)
    tracker.follow(1.0, scheduler, [session.id])
    assert [span.activity for span in tracker.under_way(2.0)] == [activity]


def busy_spans() -> list[Span]:
    """Return the spans of a device after 60 seconds of everything."""
    notebooks = [
        endless("ada1", 0.2, ephemeral=300),
        endless("ada2", 1e9, ephemeral=300, has_boundaries=False),
        Notebook(name="bob", cells=[Cell(seconds=0.01, pause=0.31, persistent=20) for _ in range(90)]),
        Notebook(name="cleo", domain="y", cells=[Cell(seconds=0.05, iterations=50, ephemeral=300, pause=0.1)] * 9),
    ]
    device = Device(SchedulerConfig(capacity=1000), notebooks)
    device.run(60)
    scheduler = Scheduler(device.desk.scheduler.config)
    spans: list[Span] = []
    tracker = SpanTracker(spans.append)
    for now, event in device.desk.log:
        scheduler.handle(event, now=now)
        tracker.follow(now, scheduler, scheduler.touched)
    return [*spans, *tracker.under_way(now)]


def test_one_track_and_one_session_do_one_thing_at_a_time() -> None:
    """Spans of a track never overlap, nor those of a session; few tracks serve many lanes; no second is lost."""
    spans = busy_spans()
    runs = [span for span in spans if span.activity is Activity.RUNNING]
    assert len({span.lane for span in runs}) > 20
    assert {span.track for span in runs} <= {1, 2, 3, 4}
    for groups in ({span.track for span in runs}, {span.session for span in spans}):
        for group in groups:
            members = sorted(
                (span for span in spans if group in (span.track, span.session)), key=lambda span: span.begin
            )
            assert all(before.end <= after.begin + 1e-9 for before, after in pairwise(members))
    ran = sum(min(span.end, 59.0) - max(span.begin, 10.0) for span in runs if span.end > 10.0 and span.begin < 59.0)
    assert ran == pytest.approx(49.0, abs=1.0)
