"""Interference: the slowdown of sessions that run side by side, predicted and measured (Horus, TPDS 2022).

Predicted: sessions keep their speed while their solo utilisations of the device sum to at most 1, and share it beyond,
in proportion. This is Horus's premise; on the 1,388 pairs published with Gavel the mean normalised speed is at least
0.97 up to there. A second lane therefore runs only while that sum is bearable (`steps/dispatch.py`), and a session that
was not measured runs alone.

Measured: device time per iteration over grants beside others, against that over grants alone.

What was measured of one source says nothing about another, which runs alone until it is measured itself: beside others
it never would be. Its utilisation still helps to place the notebook's next session.
"""

from __future__ import annotations

from collections.abc import Collection

from sharedkernel.scheduling.model.session import Session

#: weight of the newest value in decayed means
_DECAY = 0.2
#: tolerance for rounding errors in sums of service, seconds
_ROUNDING = 1e-9


def decayed(mean: float | None, value: float) -> float:
    """Return a decayed mean with a new value.

    Parameters
    ----------
    mean
        The mean before; None: there was none.
    value
        In the same unit.
    """
    return value if mean is None else (1 - _DECAY) * mean + _DECAY * value


def start_source(session: Session, source: str) -> None:
    """Record that a session runs another source, and drop what was measured of the last one.

    Parameters
    ----------
    session
        Its cell runs the source.
    source
        The same for each run of the same source.
    """
    stats = session.stats
    if stats.source == source:
        return
    stats.source = source
    if stats.utilisation is not None:
        stats.earlier_utilisation, stats.utilisation = stats.utilisation, None
    stats.iteration_seconds = stats.predicted_iteration_seconds = None
    stats.solo_iteration_seconds = stats.shared_iteration_seconds = None
    stats.unreported = 0.0


def record_measurement(session: Session, *, iterations: int, utilisation: float | None) -> None:
    """Learn from a grant, from its beginning or last measurement until now.

    Parameters
    ----------
    session
        Still holds the grant.
    iterations
        Completed meanwhile.
    utilisation
        How busy it kept the device meanwhile (0 to 1); None: not measured.
    """
    stats = session.stats
    if iterations:
        seconds = stats.unreported / iterations
        stats.iteration_seconds = decayed(stats.iteration_seconds, seconds)
        if stats.unreported <= session.service.held + _ROUNDING:  # all of it in this grant
            if stats.is_alone:
                stats.solo_iteration_seconds = decayed(stats.solo_iteration_seconds, seconds)
            else:
                stats.shared_iteration_seconds = decayed(stats.shared_iteration_seconds, seconds)
        stats.iterations += iterations
        stats.unreported = 0.0
    if utilisation is not None and stats.is_alone:
        stats.utilisation = decayed(stats.utilisation, utilisation)


def foreseen_slowdown(session: Session, holders: Collection[Session]) -> float | None:
    """Return how many times longer a session's iterations should take beside others than alone.

    Parameters
    ----------
    session
        1 if it runs alone; None if it holds no grant, or a figure is missing.
    holders
        All sessions that hold a grant.
    """
    if session not in holders:
        return None
    if len(holders) == 1:
        return 1.0
    known = [holder.stats.utilisation for holder in holders if holder.stats.utilisation is not None]
    return max(1.0, sum(known)) if len(known) == len(holders) else None


def seen_slowdown(session: Session) -> float | None:
    """Return how many times longer *session*'s iterations took beside others than alone; None: not measured."""
    stats = session.stats
    alone, beside = stats.solo_iteration_seconds, stats.shared_iteration_seconds
    return beside / alone if alone and beside is not None else None
