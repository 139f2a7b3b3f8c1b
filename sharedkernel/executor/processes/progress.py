"""Parts of a session's handle: how far its offloading, its grant and its wait are."""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from dataclasses import dataclass, field

from sharedkernel import protocol

#: waits of a session that are remembered
_WAITS_KEPT = 200


class PastWaits:
    """The last waits for grants, and their percentiles, computed once for each new one.

    Parameters
    ----------
    most
        How many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._seconds: deque[float] = deque(maxlen=most)
        self._percentiles: tuple[float | None, float | None] | None = (None, None)

    def add(self, seconds: float) -> None:
        """Remember a wait of so many seconds."""
        self._seconds.append(seconds)
        self._percentiles = None

    def percentiles(self) -> tuple[float | None, float | None]:
        """Return the median and the 95th percentile, seconds; None before the first."""
        if self._percentiles is None:
            # numpy's import would be waited for at every start; a single wait is all there is to tell, twice
            waits = self._seconds if len(self._seconds) > 1 else 2 * list(self._seconds)
            marks = statistics.quantiles(waits, n=20, method="inclusive")
            self._percentiles = marks[9], marks[18]
        return self._percentiles


@dataclass(slots=True, kw_only=True)
class OffloadProgress:
    """A session's memory away from the device, and how it came there and back."""

    #: moved away from the device
    bytes: int = 0
    #: what stayed and why, for people
    stayed: str | None = None
    #: why it was last not offloaded, for people
    declined: str | None = None
    #: it could not be offloaded since its last cell ended
    is_unmovable: bool = False
    #: times that it was offloaded and restored, and seconds that these took
    num_offloads: int = 0
    num_restores: int = 0
    offload_seconds: float = 0.0
    restore_seconds: float = 0.0
    #: requests to offload it that wait for its answer
    requests: list[asyncio.Future[None]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GrantProgress:
    """A session's present grant, and how it is demanded."""

    #: it was granted the device, and is notified as soon as its lane is made
    is_lane_coming: bool = False
    #: it held a grant when this executor took it over, and the scheduler would not have given it one
    is_unsanctioned: bool = False
    #: signals to yield since its present grant, and when the first was sent, on the event loop's axis
    num_signals: int = 0
    first_signal_at: float = 0.0
    #: stopped as a process, in the middle of what it does on the device
    is_stopped: bool = False


@dataclass(slots=True, kw_only=True)
class WaitProgress:
    """A session's wait for the device or for its memory, and earlier ones."""

    #: when it began, on the event loop's axis; None: it does not wait
    since: float | None = None
    #: the waits for each grant
    past: PastWaits = field(default_factory=lambda: PastWaits(_WAITS_KEPT))
    #: what was last sent to the session about it, and when
    sent: protocol.Waiting | None = None
    sent_at: float = 0.0
