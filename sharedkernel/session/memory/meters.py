"""The interface of every meter of a session's memory, whatever its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sharedkernel.protocol import Allowance, Memory


class Meter(Protocol):
    """Measures one session; called by its gate, its boundaries and its process."""

    def start(self, on_clock: Callable[[], None], on_sample: Callable[[int], None]) -> None:
        """Start to measure.

        Parameters
        ----------
        on_clock
            Called about ten times a second while a grant is held, on the meter's thread.
        on_sample
            Called with the bytes in use at each sample while a grant is held, on the meter's thread.
        """

    def start_over(self) -> None:
        """Take what is in use now as the baseline: it is nobody's data."""

    @property
    def memory(self) -> Memory:
        """The figures last measured."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use now, beyond the baseline."""

    @property
    def is_stable(self) -> bool:
        """Whether the peak has not risen for a while."""

    def data_bytes(self) -> int:
        """Return what a limit on this process's private memory must allow besides tensors (host device)."""

    def allow(self, allowance: Allowance) -> None:
        """Apply the limits of the session's memory (any thread).

        Parameters
        ----------
        allowance
            The limits, in bytes.
        """

    def device_acquired(self) -> None:
        """Prepare for an operation of the calling thread, which has acquired the device."""

    def grant_began(self) -> None:
        """Start to look for the peak."""

    def grant_ended(self, *, at_boundary: bool) -> int:
        """Wait until nothing runs on the device, and measure.

        Parameters
        ----------
        at_boundary
            Whether the grant ended at a boundary or the end of a cell, where nothing of an iteration is live.

        Returns
        -------
        int
            Live bytes beyond persistent memory; at a boundary 0.
        """

    def boundary_measured(self) -> None:
        """Measure at a boundary, with the grant kept."""

    def look_closely(self) -> None:
        """Sample closely again: other code may run now."""

    def source_read(self, source: str) -> None:
        """Record which *source* runs now, by its hash."""

    def drop_stale(self) -> bool:
        """Drop figures that a request need not keep to; return whether there were any.

        What iterations have needed is forgotten, so that the next one is measured anew; persistent memory is lowered by
        what was freed while no grant was held. What an interrupted iteration has stays.
        """

    def section_ended(self) -> None:
        """Measure at the end of a section, when everything in use is persistent."""

    def measure_idle(self) -> None:
        """Measure where nothing runs, when everything in use is persistent."""

    def measure_freed(self) -> None:
        """Lower the persistent memory by what was freed while no grant was held."""

    def record_offload(self, size: int) -> None:
        """Record that *size* bytes were offloaded."""

    def record_restore(self) -> None:
        """Record that everything is restored."""

    def utilisation(self) -> float | None:
        """Return how busy the session kept the device since the grant began, or this was asked last (0 to 1).

        None: that is not known.
        """
