"""A session's memory on the device: which pool torch allocates from, and what its addresses show.

Not yet run on a GPU.

All of torch's memory in a session comes from two kinds of pools over one arena:

- the *persistent* pool, on private units: what is allocated outside iterations;
- a *lane* pool, on the lane's units: what is allocated inside. It is begun on top of the persistent one, so it wins.
  What does not fit into the lane goes to private units, which is never wrong, only dearer.

A job's first iterations have a lane pool of their own, the *warm-up*: optimizer state and libraries' workspaces are
born there, scattered among activations. After it, the pages that hold them become private, the others are unmapped,
and the pool is *retired* (:mod:`sharedkernel.device_memory.segments`); but a warm-up in which hardly anything was born
stays for the next job. It shows the same units of the lane as the pool that follows, so it takes no memory of its own.

The lane is handed over at a boundary (:meth:`LaneMemory.hand_over`): wait for the device, find out where blocks live,
and make those pages private. From then on nothing of this session is in the lane, and no address of a live tensor
shows it. A page that was made private stays so, since with static shapes the same block survives in the same place
each time: the steady state costs nothing. Past :data:`STICKY` bytes those in which nothing lives show the lane again.

When the lane's units change, so do the places that the allocator knows; so its pool is retired, and a new one made.

Between hand-over and the next :meth:`LaneMemory.begin_turn` the lane is others'. What this module cannot see it is
told: :meth:`LaneMemory.turn_off` keeps a session out of the lane, for example since its user's threads use the device.

Calls come from the session's main thread, while no other thread of it allocates from the lane; torch's callbacks come
from anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.backing_store import BackingStore
from sharedkernel.device_memory.drivers.base import MIB
from sharedkernel.device_memory.errors import (
    ArenaBroken,
    DeviceFaulted,
    DeviceMemoryError,
    HandOverPostponed,
    InvalidMapping,
    OutOfDeviceMemory,
)
from sharedkernel.device_memory.layout import GivenUnit, LaneLayout
from sharedkernel.device_memory.mapper import Slot, SlotState
from sharedkernel.device_memory.offload import ArenaOffload, ArenaResidency, sizes_away
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.device_memory.segments import Generation, Segments, Supplier
from sharedkernel.device_memory.torch_pool import TorchPools
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.deferred_signals import signals_held

log = logging.getLogger(__name__)

#: bytes of private pages among the lane's addresses that may stay although nothing lives in them
STICKY = 64 * MIB
#: a warm-up that leaves more private bytes than this is over for good
_KEPT_WARM = 8 * MIB
#: segments for small blocks in a lane, per segment that the warm-up needed
_SMALL_MARGIN = 1.5
#: fills the lane in guard mode: not a number in every floating-point format
POISON = 0xFF


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What a hand-over, or the end of a warm-up, did."""

    #: pages that became private, and their bytes: charged to persistent memory from now on
    num_pages: int = 0
    private_bytes: int = 0
    #: they are units that were the lane's, which has none now: it should be left
    is_lane_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A session's device memory by page, in bytes."""

    #: private units mapped: what is charged to the session
    private: int
    #: of these, at addresses of the lane
    sticky: int
    #: of these, mapped and not yet given to torch
    headroom: int
    #: offloaded; not on the device
    away: int
    #: what torch counts as held of all this, lanes included, whether or not anything is mapped there
    held: int


class LaneMemory:
    """One session's lane, private memory and pools.

    Parameters
    ----------
    arena
        Its page table.
    pools
        Torch's allocator.
    supplier
        Brings units.
    warm_up
        Iterations at the start of a job that have a pool of their own. One would do for optimizers; a second shows
        better where short-lived blocks go, and fewer pages become private later.
    check_lanes
        Poison the lane at each hand-over, so that a use of memory that should have been private shows.
    """

    def __init__(
        self, arena: Arena, pools: TorchPools, supplier: Supplier, *, warm_up: int = 2, check_lanes: bool = False
    ) -> None:
        self._arena = arena
        self._pools = pools
        self._supplier = supplier
        self._segments = Segments(arena, pools, supplier)
        self._num_warm_up = self._warm_up_left = warm_up
        self._check_lanes = check_lanes
        self._layout: LaneLayout | None = None
        self._warm: Generation | None = None
        self._steady: Generation | None = None
        #: the one of these that torch allocates from, and the one whose iteration is parked
        self._current: Generation | None = None
        self._parked: Generation | None = None
        self._has_turn = False
        #: segments for small blocks that iterations need; None: not known yet
        self._num_small: int | None = None
        self._residency = ArenaResidency(arena, self._segments)
        #: where blocks lived when last looked
        self._live = LiveRanges()
        #: why this session uses no lane; None: it may
        self.off_reason: str | None = None
        self._persistent = self._segments.make_generation()
        pools.begin(self._persistent.pool)

    # --- the lane -----------------------------------

    @property
    def lane_units(self) -> set[int]:
        """Units of the lane that this process has already."""
        return self._arena.lane_units

    def set_lane(self, layout: LaneLayout, given: Iterable[GivenUnit]) -> None:
        """Use another lane from now on, or the same with other units.

        Parameters
        ----------
        layout
            What it is made of.
        given
            Those of its units that are not among :attr:`lane_units`.

        Raises
        ------
        InvalidMapping
            When something of an iteration may be in the present lane.
        """
        self._check_no_turn("the lane cannot change")
        with self._segments.lock:
            self._arena.import_lane(given)
            self._arena.drop_lane(self._arena.lane_units - {unit.unit for unit in layout.units})
        for generation in self._lane_generations():
            if not generation.fits(layout):
                # a parked iteration goes on elsewhere: what lives of it is private
                self._retire(generation)
        with self._segments.lock:
            for generation in self._lane_generations():
                generation.show(layout, self._arena)
        self._layout = layout

    def _retire(self, generation: Generation) -> None:
        self._segments.retire(generation)
        self._warm = None if generation is self._warm else self._warm
        self._steady = None if generation is self._steady else self._steady
        self._parked = None if generation is self._parked else self._parked

    @property
    def has_turn(self) -> bool:
        """Whether the lane is this session's now."""
        return self._has_turn

    def leave_lane(self) -> None:
        """Release the lane's units; what is allocated from now on is private."""
        self._check_no_turn("the lane cannot be left")
        self._layout = None
        with self._segments.lock:
            self._arena.drop_lane(self._arena.lane_units)

    def turn_off(self, reason: str) -> None:
        """Begin no iteration in a lane any more; status shows the reason."""
        if self.off_reason is None:
            self.off_reason = reason
            log.info("this session shares no lane: %s", reason)

    # --- iterations -----------------------------------

    def start_job(self) -> None:
        """Start a warm-up for other code (a cell): long-lived blocks are born in its first iteration."""
        self._warm_up_left = self._num_warm_up

    def begin_turn(self, *, must_scrub: bool = False) -> None:
        """Record that the lane is this session's until :meth:`hand_over`; a parked iteration goes on.

        Parameters
        ----------
        must_scrub
            Another user had it: fill it, so that nothing of theirs can be read.
        """
        if self.is_away:
            raise InvalidMapping("a turn cannot begin while the session's memory is offloaded.")
        if must_scrub:
            with self._segments.lock:
                self._arena.scrub_lane()
        self._has_turn = True
        if self._parked is not None and self._layout is not None:
            parked, self._parked = self._parked, None
            self._begin(parked)

    def begin_iteration(self) -> None:
        """Let torch allocate from the lane.

        Without a lane, with :attr:`off_reason`, while a CUDA graph is captured or a pool of the user's is in use, torch
        goes on to allocate from where it does.
        """
        if self._current is not None or self._layout is None or self.off_reason is not None:
            return
        if self._pools.has_user_pool or self._pools.is_capturing():
            return
        if not self._has_turn:
            raise InvalidMapping("an iteration cannot begin in a lane that is not this session's now.")
        if self._warm_up_left:
            generation = self._warm = self._warm or self._segments.make_generation(self._layout)
        else:
            if self._steady is None:
                self._steady = self._segments.make_generation(self._layout, self._num_small)
            generation = self._steady
        self._begin(generation)
        if not generation.is_primed:
            try:
                # the warm-up takes small segments as it needs them, which shows how many it needs
                num_small = 0 if generation is self._warm else len(generation.small)
                self._pools.prime(generation.pool, num_small, generation.large.total)
            except BaseException:
                self.end_iteration()
                raise
            generation.is_primed = True

    def end_iteration(self) -> None:
        """Let torch allocate from the persistent pool again; the lane stays this session's."""
        if self._current is not None:
            generation, self._current = self._current, None
            self._pools.end(generation.pool)

    def next_iteration(self) -> HandOver:
        """Handle a boundary at which the lane is kept; :meth:`hand_over` is for the others.

        At the warm-up's end this waits for the device, and for private units.

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            What :meth:`Supplier.private_units` raises; the warm-up then goes on.
        """
        result = HandOver()
        if self._pools.is_capturing():
            return result
        self._pools.boundary_passed()
        if not self._has_turn:
            return result
        if self._warm_up_left > 1 or (self._warm_up_left and self._warm is None):
            self._warm_up_left -= 1
        elif self._warm_up_left:
            self.end_iteration()
            try:
                result = self._take_out_survivors(self._settle())
                self._warm_up_left = 0
                self._tidy()
            finally:
                self.begin_iteration()
        self.begin_iteration()
        return result

    def hand_over(self, at: Literal["boundary", "cell", "yield"] = "boundary") -> HandOver:
        """Take everything that lives out of the lane, so that others may write there.

        Parameters
        ----------
        at
            Where the grant is given back. With "yield", in the middle of an iteration, what lives is mostly that
            iteration's: its pages show the lane again once nothing lives in them.

        Raises
        ------
        HandOverPostponed
            While a CUDA graph is captured. The lane is still this session's.
        SharedKernelError, KeyboardInterrupt
            What :meth:`Supplier.private_units` raises. The lane is still this session's.
        ArenaBroken, DeviceFaulted
            Whether the lane is still this session's, :attr:`has_turn` says.
        """
        if not self._has_turn:
            return HandOver()
        if self._pools.is_capturing():
            raise HandOverPostponed("the lane can be handed over only once the CUDA graph is captured.")
        current = self._current
        self.end_iteration()
        try:
            result = self._take_out_survivors(self._settle(), is_parked=at == "yield", may_keep=True)
        except BaseException:
            if current is not None:
                self._begin(current)
            raise
        self._has_turn = False
        if at == "yield":
            self._parked = current
        elif at == "boundary" and self._warm_up_left:
            self._warm_up_left -= 1
        # The lane is everybody's from here on, whatever fails.
        try:
            self._tidy()
            if self._check_lanes:
                with self._segments.lock:
                    self._arena.scrub_lane(POISON)
        except (ArenaBroken, DeviceFaulted):
            raise
        except DeviceMemoryError as error:
            log.warning("what the lane does not need any more is given back at the next hand-over: %s", error)
        return result

    def give_turn_up(self) -> None:
        """End the turn after the device was lost: what is in the lane can be neither moved out nor used."""
        self.end_iteration()
        self._has_turn = False

    def _begin(self, generation: Generation) -> None:
        self._pools.begin(generation.pool)
        self._current = generation

    def _lane_generations(self) -> list[Generation]:
        return [generation for generation in (self._warm, self._steady) if generation is not None]

    def _settle(self, *others: Generation) -> LiveRanges:
        """Wait for the device; return where blocks of the lane's and of retired pools live, and of *others*."""
        self._pools.synchronize()
        self._pools.process_events()
        every = [*self._lane_generations(), *self._segments.retired, *others]
        self._live = LiveRanges(self._pools.live_blocks(generation.pool for generation in every))
        return self._live

    @signals_held()
    def _take_out_survivors(self, live: LiveRanges, *, is_parked: bool = False, may_keep: bool = False) -> HandOver:
        """Make every page of the lane private in which something lives.

        The lane is shared by many, so what lives is copied to other units. On a full device that would wait for memory
        that others have, who wait for this very turn to end: there the session keeps the pages themselves.
        """
        found: dict[Slot, None] = {}
        for start, end in live:
            for slot in self._arena.slots_within(start, end - start):
                if slot.state is SlotState.LANE:
                    found[slot] = None
        slots = list(found)
        is_lane_kept = False
        if slots:
            try:
                given = self._supplier.private_units([slot.size for slot in slots], mid_iteration=False)
            except SharedKernelError as error:
                if not may_keep or error.reason != OutOfDeviceMemory.reason:
                    raise
                log.info("there is no room to copy %d pages out of the lane, so they are kept: %s", len(slots), error)
                with self._segments.lock:
                    self._arena.keep(slots, self._supplier.keep_units)
                is_lane_kept = True
            else:
                with self._segments.lock:
                    self._arena.make_private(slots, given)
            if is_parked:
                for generation in self._lane_generations():
                    generation.parked.update(slots)
        return HandOver(num_pages=len(slots), private_bytes=sum(slot.size for slot in slots), is_lane_kept=is_lane_kept)

    def _tidy(self) -> None:
        """After survivors were taken out: retire a warm-up that is over, and release pages in which nothing lives."""
        if self._warm is not None and not self._warm_up_left and self._warm is not self._parked:
            used = self._warm.num_small_used
            self._num_small = max(self._num_small or 0, int(used * _SMALL_MARGIN) + 1)
            if sum(slot.size for slot in self._warm.lane_slots(SlotState.PRIVATE)) > _KEPT_WARM:
                self._segments.retire(self._warm)
                self._warm = None
        for generation in self._lane_generations():
            if generation is not self._parked:
                self._rejoin(generation)
        self._segments.reap(self._live)

    def _rejoin(self, generation: Generation) -> None:
        """Let private pages in which nothing lives show the lane again: those of parked iterations, and the surplus."""
        private = generation.lane_slots(SlotState.PRIVATE)
        surplus = sum(slot.size for slot in private) - STICKY
        chosen = []
        for slot in private:
            if slot.lane_unit not in self._arena.lane_units or self._live.touches(slot.address, slot.size):
                continue
            if slot in generation.parked or surplus > 0:
                chosen.append(slot)
                surplus -= slot.size
        if chosen:
            with self._segments.lock:
                self._arena.rejoin(chosen)
            generation.parked.difference_update(chosen)

    # --- private memory -----------------------------------

    @signals_held()
    def trim(self) -> None:
        """Give back what torch keeps for later and nothing lives in: what a user means by emptying the cache.

        The persistent pool is retired, and a new one takes its place. Does nothing while a CUDA graph is captured or a
        pool of the user's is in use.
        """
        if self.is_away or self._pools.is_capturing() or self._pools.has_user_pool:
            return
        current = self._current
        self.end_iteration()
        if not self._has_turn:
            # what did not fit into the lane; nothing lives in the lane itself now
            for generation in self._lane_generations():
                if generation is not self._parked and self._segments.has_overflow(generation):
                    self._retire(generation)
        old, self._persistent = self._persistent, self._segments.make_generation()
        # the new one first: without any, torch would take back what other streams still use
        self._pools.begin(self._persistent.pool)
        self._segments.retire(old)
        self._segments.reap(self._settle())
        self._segments.drop_headroom()
        if current is not None:
            self._begin(current)

    def watch_user_pools(self) -> None:
        """Notice pools of the user's own from now on; called before user code runs."""
        self._pools.watch_user_pools()

    def figures(self) -> Figures:
        """Return where this session's bytes are."""
        with self._segments.lock:
            lanes = [generation.lane_slots(SlotState.PRIVATE) for generation in self._lane_generations()]
            return Figures(
                private=self._arena.private_bytes,
                sticky=sum(slot.size for slots in lanes for slot in slots),
                headroom=self._segments.headroom,
                away=sum(sizes_away(self._arena)),
                held=self._segments.bytes_of([self._persistent, *self._lane_generations()]),
            )

    # --- going away and coming back -----------------------------------

    @property
    def is_away(self) -> bool:
        """Whether the session's memory is offloaded."""
        return self._residency.is_away

    def offload(self, make_backing: Callable[[int], BackingStore]) -> int:
        """Move everything off the device; return the bytes that this freed.

        Parameters
        ----------
        make_backing
            Makes a backing store for so many bytes.

        Raises
        ------
        BackingStoreFull, DeviceMemoryError, KeyboardInterrupt
            Everything is where it was, unless :attr:`is_away` says otherwise; but the lane has to be set again.
        """
        pending = self.prepare_offload(make_backing)
        try:
            pending.write()
        except BaseException:
            pending.abort()
            raise
        return pending.commit()

    def prepare_offload(self, make_backing: Callable[[int], BackingStore]) -> ArenaOffload:
        """Begin to move everything off the device, in steps; the lane has to be set again in any case.

        Parameters
        ----------
        make_backing
            Makes a backing store for so many bytes.

        Raises
        ------
        BackingStoreFull, DeviceMemoryError
            Everything is where it was.
        """
        if self.is_away:
            raise InvalidMapping("the session's memory is offloaded already.")
        self.leave_lane()
        live = self._settle(self._persistent)
        self._segments.reap(live)
        self._segments.drop_headroom()
        return self._residency.prepare(live, make_backing)

    def sizes_away(self) -> list[int]:
        """Return the sizes of the private units that :meth:`restore` needs."""
        return sizes_away(self._arena)

    def restore(self, given: Sequence[GivenUnit]) -> None:
        """Bring everything back to where it was; the lane has to be set again.

        Parameters
        ----------
        given
            Private units of :meth:`sizes_away`, in that order.

        Raises
        ------
        DeviceMemoryError, KeyboardInterrupt
            Everything is still away, unless :attr:`is_away` says otherwise, and the units were released.
        """
        self._residency.restore(given)

    def close(self) -> None:
        """Unmap everything: no tensor of this process on the device may be touched any more."""
        self.end_iteration()
        self._pools.end(self._persistent.pool)
        self._residency.close()
        self._arena.close()

    def _check_no_turn(self, what: str) -> None:
        if self._has_turn:
            raise InvalidMapping(f"{what} while an iteration may be in it; hand it over first.")
