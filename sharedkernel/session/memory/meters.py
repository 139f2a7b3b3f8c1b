"""The base of every meter of a session's memory, whatever its device."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from sharedkernel.ipc.shared_page import Page
from sharedkernel.protocol import Allowance, Memory
from sharedkernel.session.memory.figures import MemoryFigures

#: seconds between calls of `on_clock`
CLOCK_INTERVAL = 0.1
#: seconds after the last grant until framework memory is measured anew
SETTLE_INTERVAL = 2.0
#: looks without a new peak after which a profile is stable
STABLE_AFTER = 100


class Meter(ABC):
    """Measures one session; called by its gate, its boundaries and its process.

    Parameters
    ----------
    page
        The figures are shown there.
    """

    def __init__(self, page: Page) -> None:
        self._figures = MemoryFigures(page)
        #: looks since the peak rose last
        self._quiet_looks = 0
        #: hash of what runs
        self._source: str | None = None
        #: framework memory is about to be measured, since a grant was held
        self._is_unsettled = False

    def start(
        self, on_clock: Callable[[], None] = lambda: None, on_sample: Callable[[int], None] = lambda used: None
    ) -> None:
        """Start to measure.

        Parameters
        ----------
        on_clock
            Called about ten times a second while a grant is held, on the meter's thread.
        on_sample
            Called with the bytes in use at each sample while a grant is held, on the meter's thread.
        """
        self.start_over()
        threading.Thread(target=self._watch, args=(on_clock, on_sample), name="sharedkernel-meter", daemon=True).start()

    @abstractmethod
    def _watch(self, on_clock: Callable[[], None], on_sample: Callable[[int], None]) -> None:
        """Tick and sample while a grant is held; measure framework memory once nothing runs (on the meter's thread)."""

    @abstractmethod
    def start_over(self) -> None:
        """Take what is in use now as the baseline: it is nobody's data."""

    @property
    def memory(self) -> Memory:
        """The figures last measured."""
        return self._figures.memory

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes in use now, beyond the baseline."""

    @abstractmethod
    def _in_use(self) -> tuple[int, int | None]:
        """Return the bytes in use now, and those that are charged; None: the same."""

    def _at_rest(self) -> tuple[int, int | None]:
        """Return the same where everything in use is persistent."""
        return self._in_use()

    @property
    def is_stable(self) -> bool:
        """Whether the peak has not risen for a while."""
        return self._quiet_looks >= STABLE_AFTER

    def data_bytes(self) -> int:
        """Return what a limit on this process's private memory must allow besides tensors (host device)."""
        return 0

    @abstractmethod
    def allow(self, allowance: Allowance) -> None:
        """Apply the limits of the session's memory (any thread).

        Parameters
        ----------
        allowance
            The limits, in bytes.
        """

    # --- grants -------------------------------------------------------------------------------------------------------

    def device_acquired(self) -> None:
        """Prepare for an operation of the calling thread, which has acquired the device."""
        return

    @abstractmethod
    def grant_began(self) -> None:
        """Start to look for the peak."""

    @abstractmethod
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

    @abstractmethod
    def boundary_measured(self) -> None:
        """Measure at a boundary, with the grant kept."""

    def utilisation(self) -> float | None:
        """Return how busy the session kept the device since the grant began, or this was asked last (0 to 1).

        None: that is not known; how busy a GPU is the executor sees.
        """
        return None

    # --- sections -----------------------------------------------------------------------------------------------------

    def look_closely(self) -> None:
        """Sample closely again: other code may run now."""
        self._quiet_looks, self._source = 0, None
        self._figures.section_began()

    def source_read(self, source: str) -> None:
        """Record which *source* runs now, by its hash, and predict what it needs; what it runs itself belongs to it."""
        if self._source is None:
            self._source = source
            self._figures.section_began(source)

    def drop_stale(self) -> bool:
        """Drop figures that a request need not keep to; return whether there were any.

        What iterations have needed is forgotten, so that the next one is measured anew; persistent memory is lowered by
        what was freed while no grant was held. What an interrupted iteration has stays.
        """
        was_freed = self.measure_freed()
        return self._figures.forget_need() or was_freed

    @abstractmethod
    def section_ended(self) -> None:
        """Measure at the end of a section, when everything in use is persistent."""

    def measure_idle(self) -> None:
        """Measure where nothing runs, when everything in use is persistent."""
        used, charged = self._at_rest()
        self._figures.settle(used, charged=charged)

    def measure_freed(self) -> bool:
        """Lower the persistent memory by what was freed while no grant was held; return whether anything was."""
        used, charged = self._in_use()
        return self._figures.freed(used, charged=charged)

    def record_offload(self, size: int) -> None:
        """Record that *size* bytes were offloaded."""
        self.measure_idle()
        self._measure_framework()

    def record_restore(self) -> None:
        """Record that everything is restored."""
        self.measure_idle()

    @abstractmethod
    def _measure_framework(self) -> None:
        """Measure what the process holds apart from tensors."""
