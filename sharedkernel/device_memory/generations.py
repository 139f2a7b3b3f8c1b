"""The pools over a session's lane: a job's warm-up, and the steady one that follows.

A job's first iterations have a pool of their own, the *warm-up*: optimizer state and libraries' workspaces are born
there, scattered among activations. After it, the pages that hold them become private, the others are unmapped, and the
pool is *retired* (:mod:`.segments`); but a warm-up in which hardly anything was born stays for the next job. It shows
the same units of the lane as the pool that follows, so it takes no memory of its own.

A page that was made private stays so, since with static shapes the same block survives in the same place each time:
the steady state costs nothing. Past :data:`STICKY` bytes those in which nothing lives show the lane again.

When the lane's units change, so do the places that the allocator knows; so its pool is retired, and a new one made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.driver import MIB, OutOfDeviceMemory
from sharedkernel.device_memory.layout import LaneLayout
from sharedkernel.device_memory.mapper import Slot, SlotState
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.device_memory.segments import Generation, Segments, Supplier
from sharedkernel.device_memory.torch_pool import TorchPools
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.deferred_signals import signals_held_between_waits

log = logging.getLogger(__name__)

#: bytes of private pages among the lane's addresses that may stay although nothing lives in them
STICKY = 64 * MIB
#: a warm-up that leaves more private bytes than this is over for good
_KEPT_WARM = 8 * MIB
#: segments for small blocks in a lane, per segment that the warm-up needed
_SMALL_MARGIN = 1.5


class LaneGenerations:
    """The warm-up and the steady generation over one lane, as far as they exist; iterate for them.

    Parameters
    ----------
    arena, pools, segments, supplier
        The session's.
    warm_up
        Iterations at the start of a job that belong to its warm-up.
    """

    def __init__(self, arena: Arena, pools: TorchPools, segments: Segments, supplier: Supplier, warm_up: int) -> None:
        self._arena = arena
        self._supplier = supplier
        self._pools = pools
        self._segments = segments
        self._num_warm_up = self._warm_up_left = warm_up
        self._warm: Generation | None = None
        self._steady: Generation | None = None
        #: segments for small blocks that iterations need; None: not known yet
        self._num_small: int | None = None
        #: the one whose iteration was interrupted for others
        self.parked: Generation | None = None

    def __iter__(self) -> Iterator[Generation]:
        return (generation for generation in (self._warm, self._steady) if generation is not None)

    # --- the lane -----------------------------------

    def show(self, layout: LaneLayout) -> None:
        """Show another lane, or the same with other units; what does not fit it is retired."""
        for generation in list(self):
            if not generation.fits(layout):
                # a parked iteration goes on elsewhere: what lives of it is private
                self._retire(generation)
        with self._segments.lock:
            for generation in self:
                generation.show(layout, self._arena)

    def _retire(self, generation: Generation) -> None:
        self._segments.retire(generation)
        self._warm = None if generation is self._warm else self._warm
        self._steady = None if generation is self._steady else self._steady
        self.parked = None if generation is self.parked else self.parked

    def retire_overflowing(self) -> None:
        """Retire those that have segments outside the lane; to be called while nothing lives in the lane itself."""
        for generation in list(self):
            if generation is not self.parked and self._segments.has_overflow(generation):
                self._retire(generation)

    # --- iterations -----------------------------------

    def start_job(self) -> None:
        """Start a warm-up."""
        self._warm_up_left = self._num_warm_up

    @property
    def is_warm_up_ending(self) -> bool:
        """Whether the next boundary ends a warm-up in which something may have been born."""
        return self._warm_up_left == 1 and self._warm is not None

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over."""
        return not self._warm_up_left

    def count_iteration(self) -> None:
        """Record that an iteration of the warm-up, if it is one, is over."""
        self._warm_up_left = max(0, self._warm_up_left - 1)

    def choose(self, layout: LaneLayout) -> Generation:
        """Return the generation for the next iteration, which is made if it has to be."""
        if self._warm_up_left:
            self._warm = self._warm or self._segments.make_generation(layout)
            return self._warm
        self._steady = self._steady or self._segments.make_generation(layout, self._num_small)
        return self._steady

    def prime(self, generation: Generation) -> None:
        """Let the pool of a generation that has begun own all its memory, once."""
        if not generation.is_primed:
            # the warm-up takes small segments as it needs them, which shows how many it needs
            num_small = 0 if generation is self._warm else len(generation.small)
            self._pools.prime(generation.pool, num_small, generation.large.total)
            generation.is_primed = True

    # --- boundaries -----------------------------------

    @signals_held_between_waits()
    def take_out_survivors(self, live: LiveRanges, *, is_parked: bool = False, may_keep: bool = False) -> bool:
        """Make every page of the lane private in which something lives.

        The lane is shared by many, so what lives is copied to other units. On a full device that would wait for memory
        that others have, who wait for this very turn to end: there the session keeps the pages themselves.

        Parameters
        ----------
        live
            Where blocks of these generations live.
        is_parked
            Whether what lives is mostly of an iteration that goes on later.
        may_keep
            Whether pages may be kept where there is no room for copies.

        Returns
        -------
        bool
            Whether they were kept: the lane has no units now, and should be left.

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            What :meth:`.Supplier.private_units` raises; nothing has changed.
        """
        found: dict[Slot, None] = {}
        for start, end in live:
            for slot in self._arena.slots_within(start, end - start):
                if slot.state is SlotState.LANE:
                    found[slot] = None
        slots, is_lane_kept = list(found), False
        if not slots:
            return False
        try:
            given = self._supplier.private_units([slot.size for slot in slots], mid_iteration=False)
        except SharedKernelError as error:
            if not may_keep or error.reason != OutOfDeviceMemory.reason:
                raise
            log.info("there is no room to copy %d pages out of the lane, so they are kept: %s", len(slots), error)
            is_lane_kept = True
        with self._segments.lock:
            if is_lane_kept:
                self._arena.keep(slots, self._supplier.keep_units)
            else:
                self._arena.make_private(slots, given)
        if is_parked:
            for generation in self:
                generation.parked.update(slots)
        return is_lane_kept

    def tidy(self, live: LiveRanges) -> None:
        """After survivors were taken out, retire a warm-up that is over, and release pages in which nothing lives.

        Parameters
        ----------
        live
            Where blocks of these and of all retired generations live.
        """
        if self._warm is not None and not self._warm_up_left and self._warm is not self.parked:
            self._num_small = max(self._num_small or 0, int(self._warm.num_small_used * _SMALL_MARGIN) + 1)
            if sum(slot.size for slot in self._warm.lane_slots(SlotState.PRIVATE)) > _KEPT_WARM:
                self._retire(self._warm)
        for generation in self:
            if generation is not self.parked:
                self._rejoin(generation, live)
        self._segments.reap(live)

    def _rejoin(self, generation: Generation, live: LiveRanges) -> None:
        """Let private pages in which nothing lives show the lane again: those of parked iterations, and the surplus."""
        private = generation.lane_slots(SlotState.PRIVATE)
        surplus = sum(slot.size for slot in private) - STICKY
        chosen: list[Slot] = []
        for slot in private:
            if slot.lane_unit not in self._arena.lane_units or live.touches(slot.address, slot.size):
                continue
            if slot in generation.parked or surplus > 0:
                chosen.append(slot)
                surplus -= slot.size
        if chosen:
            with self._segments.lock:
                self._arena.rejoin(chosen)
            generation.parked.difference_update(chosen)
