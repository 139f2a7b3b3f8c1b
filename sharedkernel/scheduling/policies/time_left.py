"""Time left: when an open cell will end, by the clock, and whether that can be believed.

The work that is left is the iterations that the cell declared, at their mean duration on the device lately, or the rest
of an earlier run of its source. It takes as much longer than on a device of its own as the cell took lately, with its
turns, its waits and its plain Python.

*Lately* is about the last half of the cell, between two of its *marks*: one is made whenever a report comes after the
cell has become a quarter older, and a few are kept. What is seen over a part of the cell's age changes ever more slowly
as the cell gets older, as it should: two hours that are left are not foreseen from the last ten seconds. The first
report is the first mark, so a slow first iteration counts for nothing.

Each mark keeps the end that was expected then. While these ends, and that expected now, disagree by more than a factor
of 1.5 in what is left from now on, nothing is said. Nor is it in the last part of an earlier run, where a total that
differs by a little is a rest that differs by much.
"""

from __future__ import annotations

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.session_parts import Mark
from sharedkernel.scheduling.policies.predictions import Estimate, Predictions

#: by what factor a cell is older at each mark, and seconds that are at least between two: some turns
_OLDER, _APART = 1.25, 2.0
#: by what factor expectations may differ, and how many earlier ones there must be
_AGREE, _LEAST = 1.5, 2
#: part of an earlier run by which the next may differ
_DIFFERENCE = 0.2


def mark_way(session: Session, predictions: Predictions, now: float) -> None:
    """Make a mark on the way of *session*'s open cell if it is time for one.

    Parameters
    ----------
    session
        Was reported on.
    predictions
        Know what its cell may still need.
    now
        Seconds.
    """
    marks, opened = session.forecast.marks, session.cell.opened_at
    if marks and now < max(opened + _OLDER * (marks[-1].at - opened), marks[-1].at + _APART):
        return
    is_declared, estimate = session.forecast.declared is not None, predictions.estimate(session)
    if (is_declared and session.stats.unreported) or (not is_declared and estimate.origin != "earlier"):
        return
    left = _expected(session, estimate, now, 0.0)
    end = None if left is None else now + left
    marks.append(Mark(now, session.service.attained, session.stats.iterations, end))


def time_left(session: Session, estimate: Estimate, now: float, elapsed: float) -> float | None:
    """Return how long *session*'s open cell will still take; None: that is not known, or not to be relied on.

    Parameters
    ----------
    session
        With an open cell.
    estimate
        What its cell may still need, device-seconds, at *now*.
    now
        Seconds.
    elapsed
        Seconds since the last event, if it holds a grant; else 0.
    """
    left = _expected(session, estimate, now, elapsed)
    if left is None:
        return None
    ends = [mark.end for mark in session.forecast.marks if mark.end is not None]
    expected = [left, *(end - now for end in ends)]
    if len(ends) < _LEAST or max(expected) > _AGREE * min(expected):
        return None
    return left


def _expected(session: Session, estimate: Estimate, now: float, elapsed: float) -> float | None:
    """Return when the cell should end from now; None: too little is known of it."""
    forecast, stats = session.forecast, session.stats
    if not forecast.marks:
        return None
    first, unreported = forecast.marks[0], stats.unreported + elapsed
    served, passed = session.service.attained + elapsed - first.service, now - first.at
    if forecast.declared is not None:
        iterations = forecast.declared - (stats.iterations - forecast.declared_after)
        completed = stats.iterations - first.iterations
        if not completed or iterations <= 0:
            return None
        need = max(0.0, iterations * (served - unreported) / completed - unreported)
    elif estimate.origin == "earlier":
        need = estimate.seconds
        if need < 2 * _DIFFERENCE * (need + session.cell_service + elapsed):
            return None
    else:
        return None
    return need * passed / served if served > 0 else None
