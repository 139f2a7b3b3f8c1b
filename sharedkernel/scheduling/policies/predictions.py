"""Predictions: the service that a cell may still need, the origin of that estimate, and when the cell will end.

In this order:

declared
    the iterations that are left, as the notebook shows them (a progress bar's total, a loader's length), times the
    recent, or predicted, duration of an iteration;
earlier
    the duration of earlier runs of the same source by the same user;
residual
    what cells of its age needed beyond it, of all cells that have ended; as much again as they had if none reached that
    age: the estimate that is wrong by the same factor at any scale.

A guess is exceeded once the cell has had a quarter more than it, and an iteration. From then on neither a declaration
nor an earlier run counts until the cell ends: a wrong guess misplaces a cell once.

The *time left* goes by the clock. The work that is left, declared or by an earlier run, takes as much longer than on a
device of its own as the cell took lately, with its turns, its waits and its plain Python.

*Lately* is about the last half of the cell, between two of its *marks*: one is made whenever a report comes after the
cell has become a quarter older, and a few are kept. What is seen over a part of the cell's age changes ever more slowly
as the cell gets older, as it should: two hours that are left are not foreseen from the last ten seconds. The first
report is the first mark, so a slow first iteration counts for nothing.

Each mark keeps the end that was expected then. While these ends, and that expected now, disagree by more than a factor
of 1.5 in what is left from now on, nothing is said. Nor is it in the last part of an earlier run, where a total that
differs by a little is a rest that differs by much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.scheduling.model.session import Mark, Session
from sharedkernel.scheduling.model.types import PredictionOrigin, UserId
from sharedkernel.scheduling.policies.levels import ServiceHistory

#: by how much a guess may be exceeded, as a share of it
_TOLERANCE = 0.25
#: weight of the newest run of a source
_NEWEST = 0.5
#: most sources whose runs are kept
_SOURCES = 2000
#: first threshold while too few cells are over, seconds: a short cell need not wait for a training of any age
_FIRST_THRESHOLD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The service that a cell may still need."""

    #: device-seconds
    seconds: float
    origin: PredictionOrigin


class Predictions:
    """Learns from ended cells what open ones may need.

    Parameters
    ----------
    in_cells
        Returns the sessions with an open cell.
    """

    def __init__(self, in_cells: Callable[[], Iterable[Session]]) -> None:
        #: service of ended cells
        self.services = ServiceHistory(
            lambda: [session.cell_service for session in in_cells()], first_threshold=_FIRST_THRESHOLD
        )
        #: device-seconds of a source's runs, by user and source, the last used last
        self._by_source: OrderedDict[tuple[UserId, str | None], float] = OrderedDict()

    def cell_closed(self, session: Session) -> bool:
        """Learn from *session*'s ended cell; return whether thresholds and stages changed by it."""
        self._record(session.user.id, session.cell.source, session.cell_service)
        return self.services.learn()

    def recall(self, cells: Iterable[tuple[UserId, str | None, float]]) -> None:
        """Learn from *cells* of an earlier scheduler: user, source and device-seconds of each, oldest first."""
        for user, source, service in cells:
            self._record(user, source, service)
        self.services.learn()

    def _record(self, user: UserId, source: str | None, service: float) -> None:
        if source is not None and service > 0:
            before = self._by_source.pop((user, source), service)
            self._by_source[user, source] = before + _NEWEST * (service - before)
            if len(self._by_source) > _SOURCES:
                self._by_source.popitem(last=False)
        self.services.add(service)

    def estimate(self, session: Session) -> Estimate:
        """Return what *session*'s open cell may still need."""
        guess = self._guess(session)
        if guess is None or guess[2] < 0:
            return Estimate(seconds=self.services.mean_residual(session.cell_service), origin="residual")
        # A cell that exceeds its guess by a little is about to end.
        return Estimate(seconds=max(guess[0], 0.0), origin=guess[1])

    def holds_for(self, session: Session) -> float | None:
        """Return after how much more service the guess about *session* is exceeded; None: there is no guess."""
        guess = self._guess(session)
        return None if guess is None or guess[2] < 0 else guess[2]

    def has_exceeded(self, session: Session) -> bool:
        """Return whether *session*'s cell has exceeded its guess."""
        guess = self._guess(session)
        return guess is not None and guess[2] < 0

    def _guess(self, session: Session) -> tuple[float, PredictionOrigin, float] | None:
        """Return what is left of a guess, its origin, and after how much more service it is exceeded; None: no guess.

        Either may be less than 0: there has been more than that.
        """
        forecast, each = session.forecast, session.stats.expected_iteration_seconds
        origin: PredictionOrigin
        if forecast.is_misjudged:
            return None
        if forecast.declared is not None and each is not None:
            expected, origin = forecast.declared * each, "declared"
            had = session.service.attained - forecast.declared_at
        elif (took := self._by_source.get((session.user.id, session.cell.source))) is not None:
            expected, had, origin = took, session.cell_service, "earlier"
        else:
            return None
        return expected - had, origin, expected * (1 + _TOLERANCE) + (each or 0.0) - had


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
