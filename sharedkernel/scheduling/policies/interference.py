"""How much sessions that run side by side slow each other: as it is foreseen, and as it is seen (Horus, TPDS 2022).

Foreseen: sessions keep their speed while their solo utilisations of the device sum to at most 1, and share it beyond,
in proportion. Horus's premise; on the 1,388 pairs published with Gavel mean normalised speed is at least 0.97 up to
there. So a second lane runs only while that sum is bearable (`steps/dispatch.py`), and a session of which nothing is
known runs alone.

Seen: device time per iteration over grants beside others, against that over grants alone.

How busy one source was seen to keep the device is a mere guess for another one, and kept as such until that is
predicted or measured; how long its iterations took says nothing about another's.
"""

from __future__ import annotations

from collections.abc import Collection

from sharedkernel.scheduling.model.session import Session

#: weight of the newest value in decayed means
_DECAY = 0.2
#: seconds of service that do not count: sums of times are not exact
_ROUNDING = 1e-9


def decayed(mean: float | None, value: float) -> float:
    """Return the decayed *mean* with a new *value*; None: there was none before."""
    return value if mean is None else (1 - _DECAY) * mean + _DECAY * value


def start_source(session: Session, source: str) -> None:
    """Take note that *session* runs *source* from now on."""
    stats = session.stats
    if stats.source == source:
        return
    stats.source = source
    if stats.measured_utilisation is not None:
        stats.predicted_utilisation, stats.measured_utilisation = stats.measured_utilisation, None
    stats.iteration_seconds = stats.predicted_iteration_seconds = None
    stats.solo_iteration_seconds = stats.shared_iteration_seconds = None
    stats.unreported = 0.0


def record_measurement(session: Session, *, iterations: int, utilisation: float | None) -> None:
    """Learn from a grant of *session*, from its beginning or the last measurement until now.

    Parameters
    ----------
    session
        It holds the grant still.
    iterations
        Completed meanwhile.
    utilisation
        How busy it kept the device meanwhile (0 to 1); None: not measured.
    """
    stats = session.stats
    if iterations:
        seconds = stats.unreported / iterations
        stats.iteration_seconds = decayed(stats.iteration_seconds, seconds)
        if stats.unreported <= session.held + _ROUNDING:  # all of it in this grant
            if stats.is_alone:
                stats.solo_iteration_seconds = decayed(stats.solo_iteration_seconds, seconds)
            else:
                stats.shared_iteration_seconds = decayed(stats.shared_iteration_seconds, seconds)
        stats.iterations += iterations
        stats.unreported = 0.0
    if utilisation is not None and stats.is_alone:
        stats.measured_utilisation = decayed(stats.measured_utilisation, utilisation)


def foreseen_slowdown(session: Session, holders: Collection[Session]) -> float | None:
    """Return how many times longer *session*'s iterations should take beside the other *holders* than alone.

    1: as long; None: it does not hold the device, or something is not known.
    """
    if session not in holders:
        return None
    total = 0.0
    for holder in holders:
        utilisation = holder.stats.utilisation
        if utilisation is None:
            return None if len(holders) > 1 else 1.0
        total += utilisation
    return max(1.0, total) if len(holders) > 1 else 1.0


def seen_slowdown(session: Session) -> float | None:
    """Return how many times longer *session*'s iterations took beside others than alone; None: not seen yet."""
    stats = session.stats
    alone, beside = stats.solo_iteration_seconds, stats.shared_iteration_seconds
    return beside / alone if alone and beside is not None else None
