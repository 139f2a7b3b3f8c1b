"""How busy a session will keep the device alone, foreseen from what an iteration asks of it (Horus, TPDS 2022).

A roofline: an iteration keeps the device busy for as long as its floating-point operations take at the best rate ever
seen there, or its bytes, whichever is longer. Both rates are learned from sessions whose utilisation was measured while
they ran alone; so is by how much the roofline is off on average, since few programs come near the best rate. A device
that was never driven hard by one of the two looks slower there than it is: predictions err towards busy. Until anything
was measured nothing is predicted: the first session of a new device runs alone until it is.

What an iteration asks for only its session can tell, and it may lie. So rates are learned for each user apart. Who was
never measured is predicted by the median of what follows from the rates of others, of two at least: a lie spoils
nobody's predictions but the liar's own.

On the host device every computation keeps at least one processor busy, and at most as many as torch has threads. The
roofline estimates how many.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Collection

import msgspec

from sharedkernel.protocol import Foreseen

#: busy shares below which a measurement says nothing of rates: it is all overhead
_LEAST_BUSY = 0.05
#: weight of the newest value in the mean correction
_NEWEST = 0.2
#: largest correction, and largest reciprocal of one
_MOST_OFF = 20.0
#: users whose rates are remembered
_MOST_USERS = 1000


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a device was seen to do for one user."""

    user: str
    #: most floating-point operations and bytes per second that it was busy
    flops_per_second: float
    bytes_per_second: float
    #: by how much programs were busier than these rates say, as a factor
    correction: float = 1.0


class UtilisationForecast:
    """Predicts utilisation on one device, and learns from what is measured.

    Parameters
    ----------
    device_kind
        As :class:`~sharedkernel.protocol.Device` has it.
    """

    def __init__(self, device_kind: str) -> None:
        self._processors = (os.cpu_count() or 1) if device_kind == "host" else 0
        #: by user; the one measured last is at the end
        self._rates: dict[str, Rates] = {}

    @property
    def learned(self) -> Collection[Rates]:
        """What was learned of each user."""
        return self._rates.values()

    def recall(self, rates: Rates) -> None:
        """Record what was learned before this executor."""
        self._rates.pop(rates.user, None)
        self._rates[rates.user] = rates
        if len(self._rates) > _MOST_USERS:
            del self._rates[next(iter(self._rates))]

    def predict(self, user: str, work: Foreseen) -> float | None:
        """Return how busy (0 to 1) a session of *user* that foresees *work* keeps the device alone; None: not known."""
        least, most = self._bounds(work)
        if most <= least:
            return least
        own = self._rates.get(user)
        busy = self._busy_as_others(work) if own is None else _busy(work, own)
        return None if busy is None else least + (most - least) * busy

    def learn(self, user: str, work: Foreseen, utilisation: float) -> Rates | None:
        """Learn from a *utilisation* (0 to 1) measured alone of what *user* foresaw as *work*; return what, if any."""
        least, most = self._bounds(work)
        flops, size, seconds = work.iteration_flops, work.iteration_bytes, work.iteration_seconds
        busy = (min(utilisation, most) - least) / (most - least) if most > least else 0.0
        if flops is None or size is None or not seconds or busy < _LEAST_BUSY:
            return None
        before = self._rates.get(user) or Rates(user=user, flops_per_second=0.0, bytes_per_second=0.0)
        rates = msgspec.structs.replace(
            before,
            flops_per_second=max(before.flops_per_second, flops / seconds),
            bytes_per_second=max(before.bytes_per_second, size / seconds),
        )
        if share := _share(work, rates):
            off = min(max(busy / share, 1 / _MOST_OFF), _MOST_OFF)
            correction = math.exp((1 - _NEWEST) * math.log(before.correction) + _NEWEST * math.log(off))
            rates = msgspec.structs.replace(rates, correction=correction)
        self.recall(rates)
        return rates

    def _busy_as_others(self, work: Foreseen) -> float | None:
        """Return how busy *work* keeps the device by the rates of most users; None: there are not two of them."""
        others = [busy for rates in self._rates.values() if (busy := _busy(work, rates)) is not None]
        # Of two that differ the larger: to be taken for busy costs no more than to run alone until that is measured.
        return statistics.median_high(others) if len(others) > 1 else None

    def _bounds(self, work: Foreseen) -> tuple[float, float]:
        """Return how busy a session keeps the device at least and at most, whatever it computes."""
        if not self._processors:
            return 0.0, 1.0
        return 1 / self._processors, min(max(work.threads, 1), self._processors) / self._processors


def _busy(work: Foreseen, rates: Rates) -> float | None:
    """Return how busy *work* keeps the device by *rates*, from 0 to 1; None: not known."""
    share = _share(work, rates)
    return None if share is None else min(1.0, share * rates.correction)


def _share(work: Foreseen, rates: Rates) -> float | None:
    """Return which share of its time an iteration is busy by the roofline; None: not known."""
    seconds = work.iteration_seconds
    if not seconds or work.iteration_flops is None or work.iteration_bytes is None:
        return None
    flops = work.iteration_flops / rates.flops_per_second if rates.flops_per_second else 0.0
    size = work.iteration_bytes / rates.bytes_per_second if rates.bytes_per_second else 0.0
    return max(flops, size) / seconds
