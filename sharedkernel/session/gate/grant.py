"""The grant that a session holds: whether it does, and what came of it.

It begins on the link's thread and ends in the main one; `link.lock` covers both, together with the message about it.
"""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Page, Turn, Word
from sharedkernel.session.connection import Link
from sharedkernel.session.memory.growth import Growth
from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.residency import Residency
from sharedkernel.session.progress.forecast import Forecast
from sharedkernel.session.ui.wait_display import WaitDisplay

#: seconds between two measurements of a grant that is kept
GRANT_INTERVAL = 1.0

#: where a grant is released
ReleasePoint = Literal["boundary", "cell", "yield"]
#: the words that every grant reads and writes, and what is written, as plain numbers: members of an enumeration cost
#: more to look up
_ITERATIONS, _TURN = int(Word.ITERATIONS), int(Word.TURN)
_READY, _HOLDING = int(Turn.READY), int(Turn.HOLDING)
#: what each of OpenMP's threads runs when they are made: a C function that needs nothing and ignores its arguments
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParts:
    """What a session's gate works with."""

    #: shared with the executor
    page: Page
    #: measures the session's memory
    meter: Meter
    #: to the executor
    link: Link
    #: shows waits in the notebook
    notice: WaitDisplay
    #: offloads and restores the session's memory
    residency: Residency
    #: decides when the session needs more memory
    growth: Growth
    #: predicts the session's work
    forecast: Forecast


class GatePart:
    """The gate, or a part of it, with what all parts use at hand.

    Parameters
    ----------
    parts
        What the gate works with.
    """

    def __init__(self, parts: GateParts) -> None:
        self._words = parts.page.words
        self._meter = parts.meter
        self._link = parts.link
        self._notice = parts.notice
        self._residency = parts.residency
        self._growth = parts.growth
        self._forecast = parts.forecast


class GateObserver(Protocol):
    """Learns what happens at a gate: the session's boundaries."""

    def turn_changed(self, begins: bool) -> None:
        """Handle the begin or the end of a grant (any thread).

        Parameters
        ----------
        begins
            Whether it begins.
        """

    def force_signalled(self) -> None:
        """Handle a force signal that finds the main thread with a grant, between two bytecodes."""

    def look_began(self) -> None:
        """Handle the begin of something that looks at dispatch, such as a profiler."""


class LaneAccess(Protocol):
    """The session's lane, where its bytes are shared: :class:`~sharedkernel.session.lanes.session_lane.SessionLane`."""

    @property
    def has_turn(self) -> bool:
        """Whether something of this session's iteration may be in its lane."""

    @property
    def is_settled(self) -> bool:
        """Whether boundaries at which the grant is kept need not be told for some time."""

    def is_device_idle(self) -> bool:
        """Whether nothing of this session runs on the device (any thread)."""

    def is_called_back(self) -> bool:
        """Whether torch's allocator is calling back in this thread."""

    def section_began(self) -> None:
        """Prepare for other code than before."""

    def turn_began(self, *, has_lane: bool) -> None:
        """Take the lane that a grant is for, if there is one.

        Parameters
        ----------
        has_lane
            Whether there is.
        """

    def boundary_passed(self) -> None:
        """Handle a boundary at which the grant is kept."""

    def section_ended(self) -> None:
        """Give back what the section has freed, and nothing lives in."""

    def memory_freed(self) -> None:
        """Give back what was freed in the middle of a section: another pool may need it."""

    def hand_over(self, at: ReleasePoint) -> bool:
        """Hand the lane over.

        Parameters
        ----------
        at
            Where it is released: at a "boundary", at the end of a "cell", or in the middle of an iteration ("yield").

        Returns
        -------
        bool
            Whether the grant may go.
        """


class ThreadBound:
    """Bounds the threads of the main thread's operations.

    While sessions run side by side, all of them together have no more threads than there are processors. The threads
    are made while there is room for their stacks: GNU's OpenMP ends the process where it cannot make one, as under a
    limit on private memory that a tensor has just reached.
    """

    def __init__(self) -> None:
        #: bound that came with the last grant; 0: none
        self.granted = 0
        #: what the user had set when the bound took its place; 0: there is no bound
        self._users_own = 0
        self._are_made = False

    def keep(self) -> None:
        """Keep to the threads granted while others run side by side; else leave the user's own setting alone."""
        if self.granted and not self._users_own:
            self._users_own = torch.get_num_threads()
            torch.set_num_threads(min(self.granted, self._users_own))
        elif self._users_own and not self.granted:
            torch.set_num_threads(self._users_own)
            self._users_own = 0

    @property
    def is_due(self) -> bool:
        """Whether memory is limited, so that OpenMP may fail to make a thread, and :meth:`make` was not called."""
        return not self._are_made and resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY

    def make(self) -> None:
        """Have OpenMP make the main thread's threads now (milliseconds).

        Not before others have most of the memory: a process forked later has none of these threads, and would wait for
        them for ever (:meth:`forget_in_child`).
        """
        self._are_made = True
        parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
        if parallel is not None:
            with unlimited_rlimit():
                parallel(_NOTHING, None, ctypes.c_uint(torch.get_num_threads()), ctypes.c_uint(0))

    def forget_in_child(self) -> None:
        """Compute in one thread: a forked child has none of those that were made."""
        if self._are_made:
            torch.set_num_threads(1)


class HeldGrant(GatePart):
    """One session's grant, time and again.

    Parameters
    ----------
    parts
        What the gate works with.
    on_turn
        Called with True when it begins and with False when it ends, on any thread.
    """

    def __init__(self, parts: GateParts, on_turn: Callable[[bool], None]) -> None:
        super().__init__(parts)
        self._on_turn = on_turn
        self.is_held = False
        #: there is a lane for it
        self.has_lane = True
        #: measure at the next boundary (set by the meter's clock)
        self.measure_due = False
        #: release at the next boundary although nobody asks, to see whether the code still uses the device
        self.release_due = False
        #: how many threads the session's operations may use
        self.threads = ThreadBound()
        #: boundaries passed when it began or was measured last, and when that was
        self._boundaries_before = 0
        self._measured_at = 0.0

    def begin(self) -> None:
        """Start to measure the grant, which is held already."""
        self.release_due = False
        self._boundaries_before = self._words[_ITERATIONS]
        self._words[_TURN] = _HOLDING
        self._forecast.grant_began(self._boundaries_before)
        self._measured_at = time.monotonic()
        self._meter.grant_began()
        self._on_turn(True)

    def end(self, at: ReleasePoint) -> protocol.GrantReleasedReport:
        """End it.

        Parameters
        ----------
        at
            Where it is released: at a "boundary", at the end of a "cell", or in the middle of an iteration ("yield").

        Returns
        -------
        GrantReleasedReport
            For the executor.
        """
        utilisation = self._meter.utilisation()
        live = self._meter.grant_ended(at_boundary=at != "yield")
        self.is_held = False
        self._on_turn(False)
        self._words[_TURN] = _READY
        return protocol.GrantReleasedReport(
            at=at,
            memory=self._meter.memory,
            live_bytes=live,
            iterations=self._words[_ITERATIONS] - self._boundaries_before,
            utilisation=utilisation,
        )

    def news(self) -> protocol.GrantMeasuredReport | None:
        """Return what was measured since the grant began or was last reported; None: no report is due yet."""
        now = time.monotonic()
        if now < self._measured_at + GRANT_INTERVAL:
            return None
        iterations = self._words[_ITERATIONS]
        completed, self._boundaries_before = iterations - self._boundaries_before, iterations
        self._measured_at = now
        return protocol.GrantMeasuredReport(iterations=completed, utilisation=self._meter.utilisation())
