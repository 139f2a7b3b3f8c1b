"""Predictions: the service that a cell may still need, and the origin of that estimate.

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
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import PredictionOrigin, UserId
from sharedkernel.scheduling.policies.history import ServiceHistory

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
        self._by_source: OrderedDict[tuple[UserId, str], float] = OrderedDict()

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
        if guess is None or self._has_exceeded(session, guess):
            return Estimate(seconds=self.services.mean_residual(session.cell_service), origin="residual")
        expected, since, origin = guess
        # A cell that exceeds its guess by a little is about to end.
        return Estimate(seconds=max(expected - (session.service.attained - since), 0.0), origin=origin)

    def holds_for(self, session: Session) -> float | None:
        """Return after how much more service the guess about *session* is exceeded; None: there is no guess."""
        guess = self._guess(session)
        if guess is None or self._has_exceeded(session, guess):
            return None
        expected, since, _ = guess
        return _limit(session, expected) - (session.service.attained - since)

    def has_exceeded(self, session: Session) -> bool:
        """Return whether *session*'s cell has exceeded its guess."""
        guess = self._guess(session)
        return guess is not None and self._has_exceeded(session, guess)

    def _guess(self, session: Session) -> tuple[float, float, PredictionOrigin] | None:
        """Return the expected service, since which attained service, and its origin; None: there is no guess."""
        if session.forecast.is_misjudged:
            return None
        each = session.stats.expected_iteration_seconds
        if session.forecast.declared is not None and each is not None:
            return session.forecast.declared * each, session.forecast.declared_at, "declared"
        if session.cell.source is not None:
            took = self._by_source.get((session.user.id, session.cell.source))
            if took is not None:
                return took, session.service.attained - session.cell_service, "earlier"
        return None

    def _has_exceeded(self, session: Session, guess: tuple[float, float, PredictionOrigin]) -> bool:
        expected, since, _ = guess
        return session.service.attained - since > _limit(session, expected)


def _limit(session: Session, expected: float) -> float:
    return expected * (1 + _TOLERANCE) + (session.stats.expected_iteration_seconds or 0.0)
