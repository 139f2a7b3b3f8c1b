"""How busy a session will keep the device alone, foreseen from what an iteration asks of it (Horus, TPDS 2022).

A roofline: an iteration keeps the device busy for as long as its floating-point operations take at the best rate ever
seen there, or its bytes, whichever is longer. Both rates are learned from sessions whose utilisation was measured while
they ran alone; so is by how much the roofline is off on average, since few programs come near the best rate. A device
that was never driven hard by one of the two looks slower there than it is: predictions err towards busy. Until anything
was measured nothing is predicted: the first session of a new device runs alone until it is.

On the host device whoever computes keeps one processor busy, whatever it computes, and no more processors than torch
has threads: the roofline tells where between the two it is.
"""

from __future__ import annotations

import math
import os

import msgspec

from sharedkernel.protocol import Foreseen

#: busy shares below which a measurement says nothing of rates: it is all overhead
_LEAST_BUSY = 0.05
#: weight of the newest value in the mean correction
_NEWEST = 0.2
#: largest correction, and largest reciprocal of one
_MOST_OFF = 20.0


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a device was seen to do."""

    #: most floating-point operations and bytes per second that it was busy
    flops_per_second: float
    bytes_per_second: float
    #: by how much programs were busier than these rates say, as a factor
    correction: float = 1.0


class Throughput:
    """Predicts utilisation on one device, and learns from what is measured.

    Parameters
    ----------
    device_kind
        As :class:`~sharedkernel.protocol.Device` has it.
    """

    def __init__(self, device_kind: str) -> None:
        self._processors = (os.cpu_count() or 1) if device_kind == "host" else 0
        #: None: nothing was measured yet
        self.rates: Rates | None = None

    def predict(self, work: Foreseen) -> float | None:
        """Return how busy (0 to 1) a session that foresees *work* will keep the device alone; None: not known."""
        least, most = self._bounds(work)
        if most <= least:
            return least
        share = self._share(work)
        if share is None or self.rates is None:
            return None
        return least + (most - least) * min(1.0, share * self.rates.correction)

    def learn(self, work: Foreseen, utilisation: float) -> bool:
        """Learn from a *utilisation* (0 to 1) measured alone of what was foreseen as *work*; return if it did."""
        least, most = self._bounds(work)
        flops, size, seconds = work.iteration_flops, work.iteration_bytes, work.iteration_seconds
        busy = (min(utilisation, most) - least) / (most - least) if most > least else 0.0
        if flops is None or size is None or not seconds or busy < _LEAST_BUSY:
            return False
        before = self.rates or Rates(flops_per_second=0.0, bytes_per_second=0.0)
        self.rates = Rates(
            flops_per_second=max(before.flops_per_second, flops / seconds),
            bytes_per_second=max(before.bytes_per_second, size / seconds),
            correction=before.correction,
        )
        share = self._share(work)
        if share:
            off = min(max(busy / share, 1 / _MOST_OFF), _MOST_OFF)
            correction = math.exp((1 - _NEWEST) * math.log(before.correction) + _NEWEST * math.log(off))
            self.rates = msgspec.structs.replace(self.rates, correction=correction)
        return True

    def _share(self, work: Foreseen) -> float | None:
        """Return which share of its time an iteration is busy by the roofline; None: not known."""
        rates, seconds = self.rates, work.iteration_seconds
        if rates is None or not seconds or work.iteration_flops is None or work.iteration_bytes is None:
            return None
        flops = work.iteration_flops / rates.flops_per_second if rates.flops_per_second else 0.0
        size = work.iteration_bytes / rates.bytes_per_second if rates.bytes_per_second else 0.0
        return max(flops, size) / seconds

    def _bounds(self, work: Foreseen) -> tuple[float, float]:
        """Return how busy a session keeps the device at least and at most, whatever it computes."""
        if not self._processors:
            return 0.0, 1.0
        return 1 / self._processors, min(max(work.threads, 1), self._processors) / self._processors
