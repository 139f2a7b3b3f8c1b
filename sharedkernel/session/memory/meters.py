"""The figures of one session's memory, defined alike on every device, and the base of its meters.

Bytes in use when an iteration has ended are *persistent*. *Live* bytes are those in use beyond them now. What an
iteration used beyond persistent memory and gave back is its *need*: bytes that stay were never part of it. The largest
need that the same source had of late predicts how large a lane its next iteration takes (*ephemeral*); for a source
that has not run before, that is a *guess* by the section before, which nobody waits for. The largest need that the open
section was measured to have (*needed*) is no prediction, and counts against the quota while it is open.

A release in the middle of an iteration splits nothing: how much of its peak stays is known only when the iteration, or
its section, has ended. The figures until then are provisional.

Meters measure, and record it in :class:`MemoryFigures`, the only writer of the figures. A meter's thread that samples
does so through :meth:`MemoryFigures.sampled`, which drops a sample that came too late.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.protocol import Allowance, Memory

#: how much of the distance to a smaller peak a figure keeps at each measurement
DECAY = 0.98
#: sources whose needs are remembered
_MOST_SOURCES = 256


class MemoryFigures:
    """One session's figures, in bytes; the shared page shows them.

    Parameters
    ----------
    page
        Where persistent, live and framework bytes are shown.
    """

    def __init__(self, page: Page) -> None:
        self._words = page.words
        # reentrant: the main thread's signal handler measures, too, and may come while the main thread does
        self._lock = threading.RLock()
        #: of the present stretch between two measurements; a sample of an earlier one is late
        self.stretch = 0
        self.persistent = 0
        #: in use when the last iteration ended; on a GPU whose memory comes by page it differs from `persistent`
        self.settled = 0
        #: most bytes in use since the present iteration began
        self.peak = 0
        #: of an iteration that was interrupted, the most bytes in use before that; 0: there is none
        self._interrupted_peak = 0
        #: what iterations of the present source needed of late; None: not measured
        self._ephemeral: int | None = None
        #: it is what another source needed
        self._is_guess = False
        self._needed = 0
        #: hash of the present section's source, and the needs of those before, the oldest first; None: callbacks
        self._source: str | None = None
        self._needs: dict[str | None, int] = {}
        self.framework = 0
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # a thread that the child does not have may hold the one before

    @property
    def memory(self) -> Memory:
        """The figures for a report: provisional ones while an iteration is interrupted."""
        ephemeral, is_guess = self._ephemeral, self._is_guess
        if self._interrupted_peak:
            known = 0 if ephemeral is None or is_guess else ephemeral
            ephemeral, is_guess = max(known, self._interrupted_peak - self.settled), False
        return Memory(
            persistent=self.persistent,
            ephemeral=ephemeral,
            framework=self.framework,
            needed=self._needed,
            is_guess=is_guess,
        )

    @property
    def known(self) -> int:
        """Bytes that the next iteration is expected to have in use."""
        return self.settled + (self._ephemeral or 0)

    @property
    def has_live(self) -> bool:
        """Whether anything was live beyond persistent memory when that was last measured."""
        return bool(self._words[Word.LIVE])

    def grant_began(self) -> None:
        """Start to look for the peak of an iteration."""
        with self._lock:
            self.stretch += 1
            self.peak = self.settled

    def iteration_ended(
        self, used: int, *, peak: int | None = None, charged: int | None = None, may_decline: bool = True
    ) -> int:
        """Split the bytes in use: what is there now stays, what the peak had beyond it was needed.

        Parameters
        ----------
        used
            Bytes in use.
        peak
            Most bytes in use since the iteration began; None: as the samples have it.
        charged
            Bytes that count as persistent, where these are others.
        may_decline
            Whether the peak was looked at closely, so that a smaller need is one.

        Returns
        -------
        int
            Bytes that the iteration needed.
        """
        with self._lock:
            self.stretch += 1
            need = max(0, max(self.peak if peak is None else peak, self._interrupted_peak) - used)
            self._interrupted_peak, self.peak = 0, used
            before = None if self._is_guess else self._ephemeral
            self._ephemeral, self._is_guess = _decayed(before, need, may_decline=may_decline), False
            self._needed = _decayed(self._needed, need, may_decline=may_decline)
            self._settle(used, charged)
            return need

    def interrupted(self, used: int, *, peak: int | None = None, charged: int | None = None) -> int:
        """Record a release in the middle of an iteration.

        Parameters
        ----------
        used, peak, charged
            As in :meth:`iteration_ended`.

        Returns
        -------
        int
            Live bytes: those that are charged beyond persistent memory.
        """
        with self._lock:
            self.stretch += 1
            self._interrupted_peak = max(self._interrupted_peak, self.peak if peak is None else peak, used)
            self.freed(used, charged=charged)  # that much of what was persistent is gone for certain
            live = max(0, (used if charged is None else charged) - self.persistent)
            self._words[Word.LIVE] = live
            return live

    def section_began(self, source: str | None = None) -> None:
        """Predict the needs of a section's iterations.

        Parameters
        ----------
        source
            Hash of its source; None: it has none, or that has not been read yet.
        """
        with self._lock:
            self._source, self._is_guess = source, source not in self._needs and self._ephemeral is not None
            self._ephemeral = self._needs.get(source, self._ephemeral)

    def section_ended(self, used: int, *, charged: int | None = None) -> None:
        """Record the end of a section, with or without a grant: nothing that is in use now was ephemeral.

        Parameters
        ----------
        used, charged
            As in :meth:`iteration_ended`.
        """
        with self._lock:
            if self._interrupted_peak:
                self.iteration_ended(used, peak=used, charged=charged)
            else:
                self.settle(used, charged=charged)
            self._needed = 0
            if self._ephemeral is not None and not self._is_guess:
                self._needs.pop(self._source, None)
                self._needs[self._source] = self._ephemeral
                if len(self._needs) > _MOST_SOURCES:
                    del self._needs[next(iter(self._needs))]

    def settle(self, used: int, *, charged: int | None = None) -> None:
        """Take all that is in use for persistent, and look at no peak: nothing ran, or memory was moved.

        Parameters
        ----------
        used, charged
            As in :meth:`iteration_ended`.
        """
        with self._lock:
            self.stretch += 1
            self._interrupted_peak = 0
            self._settle(used, charged)

    def freed(self, used: int, *, charged: int | None = None) -> bool:
        """Lower persistent memory to what is in use, if that is less; return whether it is.

        Parameters
        ----------
        used, charged
            As in :meth:`iteration_ended`.
        """
        with self._lock:
            before, self.settled = self.persistent, min(self.settled, used)
            self.persistent = self._words[Word.PERSISTENT] = min(before, used if charged is None else charged)
            return self.persistent < before

    def sampled(self, stretch: int, used: int) -> bool:
        """Show live bytes, as a sample has them; return whether it was in time (any thread).

        Parameters
        ----------
        stretch
            :attr:`stretch` before the sample was taken.
        used
            Bytes in use.
        """
        with self._lock:
            if stretch != self.stretch:
                return False
            self.peak = max(self.peak, used)
            self._words[Word.LIVE] = max(0, used - self.persistent)
            return True

    def forget_need(self) -> bool:
        """Forget what iterations have needed; return whether it was anything.

        What an interrupted one has stays.
        """
        with self._lock:
            was_known = bool(self._ephemeral)
            self._ephemeral, self._needed, self._is_guess = 0, 0, False
            return was_known

    def set_framework(self, size: int) -> None:
        """Record *size* bytes that the process holds apart from tensors."""
        self.framework = self._words[Word.FRAMEWORK] = size

    def _settle(self, used: int, charged: int | None) -> None:
        self.settled = used
        self.persistent = self._words[Word.PERSISTENT] = used if charged is None else charged
        self._words[Word.LIVE] = 0


def _decayed(before: int | None, need: int, *, may_decline: bool) -> int:
    if before is None or need >= before:
        return need
    return round(need + (before - need) * DECAY) if may_decline else before


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
