"""A session's memory on the device: which pool torch allocates from, and what its addresses show.

All of torch's memory in a session comes from two kinds of pools over one arena:

- the *persistent* pool, on private units: what is allocated outside iterations;
- a *lane* pool, on the lane's units: what is allocated inside. It is begun on top of the persistent one, so it wins.
  What does not fit into the lane goes to private units, which is never wrong, only dearer.

A job's first iterations have a lane pool of their own (:mod:`sharedkernel.device_memory.generations`).

The lane is handed over at a boundary (:meth:`LaneMemory.hand_over`): wait for the device, find out where blocks live,
and make those pages private. From then on nothing of this session is in the lane, and no address of a live tensor
shows it.

Between hand-over and the next :meth:`LaneMemory.begin_turn` the lane is others'. Callers report what this module cannot
see: :meth:`LaneMemory.turn_off` keeps a session out of the lane, for example since its user's threads use the device.

Calls come from the session's main thread, while no other thread of it allocates from the lane; torch's callbacks come
from anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.driver import ArenaBroken, DeviceFaulted, DeviceMemoryError, InvalidMapping
from sharedkernel.device_memory.generations import LaneGenerations
from sharedkernel.device_memory.layout import GivenUnit, LaneLayout, PageBytes
from sharedkernel.device_memory.offload import ArenaOffload, ArenaResidency, BackingStore, sizes_away
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.device_memory.segments import Generation, Segments, Supplier
from sharedkernel.device_memory.torch_pool import TorchPools
from sharedkernel.system.deferred_signals import signals_held

log = logging.getLogger(__name__)

#: fills the lane in guard mode: not a number in every floating-point format
POISON = 0xFF


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
        self._generations = LaneGenerations(arena, pools, self._segments, supplier, warm_up)
        self._check_lanes = check_lanes
        self._layout: LaneLayout | None = None
        #: the generation that torch allocates from; None: the persistent one
        self._current: Generation | None = None
        #: whether the lane is this session's now
        self.has_turn = False
        self._residency = ArenaResidency(arena, self._segments.lock)
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
        self._generations.show(layout)
        self._layout = layout

    def is_device_idle(self) -> bool:
        """Return whether nothing of this session runs on the device's default stream (any thread)."""
        return self._pools.is_idle()

    def leave_lane(self) -> None:
        """Release the lane's units, also of one that came in part only; what is allocated from now on is private."""
        self._check_no_turn("the lane cannot be left")
        self._layout = None
        if self.lane_units:
            with self._segments.lock:
                self._arena.drop_lane(self.lane_units)

    def turn_off(self, reason: str) -> None:
        """Begin no iteration in a lane any more; status shows the reason."""
        if self.off_reason is None:
            self.off_reason = reason
            log.info("this session shares no lane: %s", reason)

    # --- iterations -----------------------------------

    def start_job(self) -> None:
        """Start a warm-up for other code (a cell): long-lived blocks are born in its first iteration."""
        self._generations.start_job()

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
        self.has_turn = True
        parked = self._generations.parked
        if parked is not None and self._layout is not None:
            self._generations.parked = None
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
        if not self.has_turn:
            raise InvalidMapping("an iteration cannot begin in a lane that is not this session's now.")
        generation = self._generations.choose(self._layout)
        self._begin(generation)
        try:
            self._generations.prime(generation)
        except BaseException:
            self.end_iteration()
            raise

    def end_iteration(self) -> None:
        """Let torch allocate from the persistent pool again; the lane stays this session's."""
        if self._current is not None:
            generation, self._current = self._current, None
            self._pools.end(generation.pool)

    def drop_parked(self) -> None:
        """Record that a parked iteration is over, which no boundary has told: its code has ended."""
        self._generations.parked = None

    @property
    def is_settled(self) -> bool:
        """Whether :meth:`next_iteration` would do nothing for now: no warm-up ends, and no stream holds blocks back."""
        in_lane = self._current is not None and self._generations.is_warm
        return (in_lane or not self.has_turn) and not self._pools.has_put_off

    def next_iteration(self) -> None:
        """Handle a boundary at which the lane is kept; :meth:`hand_over` is for the others.

        At the warm-up's end this waits for the device, and for private units.

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            What :meth:`Supplier.private_units` raises; the warm-up then goes on.
        """
        if self._pools.is_capturing():
            return
        self._pools.boundary_passed()
        if not self.has_turn:
            return
        if self._generations.is_warm_up_ending:
            self.end_iteration()
            try:
                self._generations.take_out_survivors(self._settle())
                self._generations.count_iteration()
                self._generations.tidy(self._live)
            finally:
                self.begin_iteration()
        else:
            self._generations.count_iteration()
        self.begin_iteration()

    def hand_over(self, at: Literal["boundary", "cell", "yield"] = "boundary") -> bool:
        """Take everything that lives out of the lane, so that others may write there.

        Parameters
        ----------
        at
            Where the grant is given back. With "yield", in the middle of an iteration, what lives is mostly that
            iteration's: its pages show the lane again once nothing lives in them.

        Returns
        -------
        bool
            Whether pages of the lane were kept, which has no units now and should be left.

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            What :meth:`Supplier.private_units` raises; and while a CUDA graph is captured. The lane is still this
            session's, and can be handed over at a later boundary.
        ArenaBroken, DeviceFaulted
            Whether the lane is still this session's, :attr:`has_turn` says.
        """
        if not self.has_turn:
            return False
        if self._pools.is_capturing():
            raise DeviceMemoryError("the lane can be handed over only once the CUDA graph is captured.")
        current = self._current
        self.end_iteration()
        try:
            is_lane_kept = self._generations.take_out_survivors(self._settle(), is_parked=at == "yield", may_keep=True)
        except BaseException:
            if current is not None:
                self._begin(current)
            raise
        self.has_turn = False
        if at == "yield":
            self._generations.parked = current
        elif at == "boundary":
            self._generations.count_iteration()
        # The lane is everybody's from here on, whatever fails.
        try:
            self._generations.tidy(self._live)
            if self._check_lanes:
                with self._segments.lock:
                    self._arena.scrub_lane(POISON)
        except (ArenaBroken, DeviceFaulted):
            raise
        except DeviceMemoryError as error:
            log.warning("what the lane does not need any more is given back at the next hand-over: %s", error)
        return is_lane_kept

    def give_turn_up(self) -> None:
        """End the turn after the device was lost: what is in the lane can be neither moved out nor used."""
        self.end_iteration()
        self.has_turn, self._layout = False, None

    def _begin(self, generation: Generation) -> None:
        self._pools.begin(generation.pool)
        self._current = generation

    def _settle(self, *others: Generation) -> LiveRanges:
        """Wait for the device; return where blocks of the lane's and of retired pools live, and of *others*."""
        self._pools.synchronize()
        self._pools.process_events()
        every = [*self._generations, *self._segments.retired, *others]
        self._live = LiveRanges(self._pools.live_blocks(generation.pool for generation in every))
        return self._live

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
        if not self.has_turn:
            self._generations.retire_overflowing()
        old, self._persistent = self._persistent, self._segments.make_generation()
        # the new one first: without any, torch would take back what other streams still use
        self._pools.begin(self._persistent.pool)
        self._segments.retire(old)
        self._segments.reap(self._settle())
        self._segments.drop_headroom()
        if current is not None:
            self._begin(current)

    def figures(self) -> PageBytes:
        """Return where this session's bytes are (any thread)."""
        layout = self._layout  # the main thread may leave the lane meanwhile
        return self._segments.figures([self._persistent, *self._generations], 0 if layout is None else layout.size)

    # --- going away and coming back -----------------------------------

    @property
    def is_away(self) -> bool:
        """Whether the session's memory is offloaded."""
        return self._residency.is_away

    def prepare_offload(self, make_backing: Callable[[int], BackingStore] = BackingStore) -> ArenaOffload:
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
        if self.has_turn:
            raise InvalidMapping(f"{what} while an iteration may be in it; hand it over first.")
