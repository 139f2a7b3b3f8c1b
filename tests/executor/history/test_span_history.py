"""What is kept of the last hour for timelines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.executor.history.span_history import SpanHistory
from sharedkernel.scheduling.spans import Activity, Span
from sharedkernel.status.timeline import MAX_ROWS, DeviceTimeline, TimelineWindow

#: seconds since 1970 at second 0 of the spans
_CLOCK = 1_000_000.0


def span(session: str, begin: float, end: float, activity: Activity = Activity.RUNNING, **fields: Any) -> Span:
    return Span(session=session, user=session.rstrip("0123456789"), activity=activity, begin=begin, end=end, **fields)


def ask(
    history: SpanHistory, now: float, seconds: float = 100.0, *, user: str | None = "ada", **fields: Any
) -> DeviceTimeline:
    under_way = fields.pop("under_way", ())
    window = TimelineWindow(seconds=seconds, columns=fields.pop("columns", 100), **fields)
    return history.recent(now, window, under_way, user=user, clock=_CLOCK + now)


def rows(timeline: DeviceTimeline) -> dict[str, list[tuple[float, float, dict[str, float]]]]:
    return {
        row.session: [(segment.begin, segment.end, segment.seconds) for segment in row.segments]
        for row in timeline.rows
    }


def test_long_spans_stay_and_short_ones_are_merged() -> None:
    """By the columns of the window: what is merged says how long it was what."""
    history = SpanHistory()
    history.add(span("ada", 0.0, 10.0))
    for turn in range(20):
        begin = 10.0 + turn / 10
        history.add(span("ada", begin, begin + 0.05, Activity.QUEUED))
        history.add(span("ada", begin + 0.05, begin + 0.1))
    assert rows(ask(history, 100.0, columns=10)) == {
        "ada": [(0.0, 10.0, {"running": 10.0}), (10.0, 12.0, {"queued": 1.0, "running": 1.0})]
    }
    (first, *others) = rows(ask(history, 12.0, seconds=2.0, columns=10))["ada"]
    assert len(others) == 9
    assert first == (0.0, 0.2, {"queued": 0.1, "running": 0.1})


def test_a_window_cuts_what_reaches_beyond_it() -> None:
    """What is under way counts until now; times are those of the clock."""
    history = SpanHistory()
    history.add(span("ada", 0.0, 40.0))
    under_way = [span("ada", 40.0, 60.0, Activity.WAITING, needed=7)]
    timeline = ask(history, 60.0, seconds=40.0, under_way=under_way)
    assert (timeline.begin, timeline.end) == (_CLOCK + 20.0, _CLOCK + 60.0)
    assert rows(timeline) == {"ada": [(0.0, 20.0, {"running": 20.0}), (20.0, 40.0, {"waiting": 20.0})]}
    assert [segment.needed_bytes for segment in timeline.rows[0].segments] == [None, 7]
    earlier = ask(history, 60.0, seconds=10.0, end=_CLOCK + 15.0, under_way=under_way)
    assert rows(earlier) == {"ada": [(0.0, 10.0, {"running": 10.0})]}
    assert ask(history, 60.0, seconds=5.0, end=_CLOCK - 10.0).rows == []


def test_own_sessions_come_first_and_only_they_are_named() -> None:
    """An admin, who looks at the same time, sees all names; more than a screen of sessions are counted."""
    history = SpanHistory()
    for number in range(30):
        history.add(span(f"grace{number}", 0.0, 10.0 + number))
        history.name(f"grace{number}", "secret.ipynb")
    history.add(span("ada", 5.0, 6.0))
    history.name("ada", "/home/ada/train.ipynb")
    timeline = ask(history, 50.0)
    assert [row.session for row in timeline.rows[:3]] == ["ada", "grace29", "grace28"]
    assert [row.notebook for row in timeline.rows[:2]] == ["/home/ada/train.ipynb", None]
    assert (len(timeline.rows), timeline.more_rows) == (MAX_ROWS, 31 - MAX_ROWS)
    assert {row.notebook for row in ask(history, 50.5, user=None).rows} == {"secret.ipynb"}


def test_an_hour_of_many_turns_takes_bounded_memory() -> None:
    """The last minutes in detail, before them less, and nothing that is older than it says; no second counts twice."""
    history = SpanHistory()
    turns = 100_000
    for turn in range(turns):
        session, begin = f"ada{turn % 5}", turn / 20
        history.add(span(session, begin, begin + 0.05))
    now = turns / 20
    fine, coarse = ask(history, now, seconds=150.0, columns=600), ask(history, now, seconds=3600.0, columns=600)
    assert fine.oldest > coarse.oldest > _CLOCK
    assert coarse.oldest <= coarse.begin + 5
    for timeline, seconds in ((fine, 150.0), (coarse, 3600.0)):
        assert len(timeline.rows) == 5
        found = [segment for row in timeline.rows for segment in row.segments]
        assert sum(segment.seconds["running"] for segment in found) == pytest.approx(seconds, rel=0.02)
        for row in timeline.rows:
            assert len(row.segments) <= 1201
            assert all(one.end <= other.begin for one, other in pairwise(row.segments))


@pytest.mark.parametrize(
    "fields", [{"seconds": 0.5}, {"seconds": 1e9}, {"columns": 1}, {"columns": 10_000}, {"end": -1.0}, {"end": 1e300}]
)
def test_a_window_has_bounds(fields: dict[str, Any]) -> None:
    """Beyond them one sentence says what is allowed."""
    with pytest.raises(ConfigError, match="a timeline"):
        TimelineWindow(**{"seconds": 150.0, "columns": 100, **fields})
