"""Addresses for torch's segments: out of the lane, or of private units; and what becomes of them later.

A *generation* is one pool of torch's with the addresses it may use. Torch keeps a segment for as long as its pool
lives, and may use any free byte of it without asking. So memory under a pool in use cannot be taken away, but a pool
that is *retired*, from which nothing is allocated any more, has its dead pages unmapped one by one, and is dropped
with its last block.

*Headroom* is private memory that is mapped and not yet torch's. When it does not suffice in the middle of a cell, a
callback has to wait for units (:meth:`Supplier.private_units`): the allocator's mutex is not held then, nor Python's
interpreter lock while it waits, nor the lock of this module. That one covers the arena and the lists, and torch is
never called under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.layout import (
    LARGE_SEGMENT,
    SMALL_UNIT,
    GivenUnit,
    LaneLayout,
    PageBytes,
    plan_private,
    small_bytes,
)
from sharedkernel.device_memory.mapper import Area, Slot, SlotState
from sharedkernel.device_memory.ranges import FreeRanges, LiveRanges
from sharedkernel.device_memory.torch_pool import Pool, TorchPools
from sharedkernel.system.deferred_signals import SignalHoldingLock, signals_held, signals_held_between_waits


class Supplier(Protocol):
    """Brings units from the executor."""

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        """Return new private units of these sizes, in this order.

        Waits until the executor has room. Called at boundaries and, with `mid_iteration`, from torch's callbacks in any
        thread: then the wait has to leave Python's interpreter lock alone (a `threading.Event` does). Signals are held
        in the main thread between waits (:func:`.signals_held_between_waits`), so that no unit is lost.

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            When there will be no room, or the wait was cut short.
        """

    def keep_units(self, units: Sequence[int]) -> None:
        """Make units of the present lane private to this session; the lane is nobody's then.

        Raises
        ------
        SharedKernelError
            When the executor refuses, or does not answer; they are the lane's as before.
        """

    def release_units(self, units: Sequence[int]) -> None:
        """Notify the executor that this process has released these units; does not wait."""


@dataclass(eq=False)
class Generation:
    """A pool of torch's and the addresses it has."""

    pool: Pool = field(init=False)
    #: the lane's addresses; None: it lives on private units alone
    area: Area | None = None
    #: addresses for segments of small blocks, not used yet
    small: list[int] = field(default_factory=list)
    #: what is left of the addresses for large blocks
    large: FreeRanges = field(default_factory=FreeRanges)
    is_primed: bool = False
    #: pages that are private only because an iteration was parked in them
    parked: set[Slot] = field(default_factory=set)

    def lane_slots(self, *states: SlotState) -> list[Slot]:
        """Return the lane's slots in these states, by address."""
        return [slot for slot in self.area.slots if slot.state in states] if self.area is not None else []

    @property
    def num_small_used(self) -> int:
        """The number of segments for small blocks that torch has asked for."""
        return sum(size == SMALL_UNIT for size in list(self.pool.segments.values()))

    def fits(self, layout: LaneLayout) -> bool:
        """Return whether its addresses are laid out as this lane is."""
        return self.area is not None and [slot.size for slot in self.area.slots] == [u.size for u in layout.units]

    def show(self, layout: LaneLayout, arena: Arena) -> None:
        """Show another lane of the same layout, wherever nothing is private."""
        if self.area is not None:
            for slot, unit in zip(self.area.slots, layout.units, strict=True):
                slot.lane_unit = unit.unit
            arena.show_lane(self.area.slots)


class Segments:
    """Gives torch's pools their segments.

    Parameters
    ----------
    arena, pools, supplier
        See :class:`~sharedkernel.device_memory.lane_memory.LaneMemory`.
    """

    def __init__(self, arena: Arena, pools: TorchPools, supplier: Supplier) -> None:
        self._arena = arena
        self._pools = pools
        self._supplier = supplier
        #: covers the arena and the lists of addresses; the link's thread takes it with its own lock held, which the
        #: handler of the force signal wants
        self.lock = SignalHoldingLock()
        self._headroom = FreeRanges()
        #: generations from which nothing is allocated any more, but in which something may live
        self.retired: list[Generation] = []

    # --- making -----------------------------------

    def make_generation(self, layout: LaneLayout | None = None, num_small: int | None = None) -> Generation:
        """Make a pool on private units, or on a lane's as far as they go.

        Parameters
        ----------
        layout
            The lane; None: private units alone.
        num_small
            How many segments for small blocks it should have; None: not known yet.
        """
        generation = Generation()
        generation.pool = self._pools.make(lambda size: self._segment(generation, size))
        if layout is not None:
            with self.lock:
                area = generation.area = self._arena.add_lane_area(layout.units)
            small = small_bytes(area.size)
            if num_small is not None:
                small = min(num_small * SMALL_UNIT, area.size - LARGE_SEGMENT)
            # taken from the end: the lowest address first
            generation.small = [area.address + start for start in range(0, small, SMALL_UNIT)][::-1]
            generation.large.add(area.address + small, area.size - small)
        return generation

    def _segment(self, generation: Generation, size: int) -> int:
        """Return an address for a segment, for which the headroom may have to grow (torch's callback, any thread).

        Raises
        ------
        SharedKernelError, KeyboardInterrupt
            What :meth:`Supplier.private_units` raises.
        """
        with self.lock:
            if size == SMALL_UNIT and generation.small:
                return generation.small.pop()
            address = generation.large.take(size) or self._headroom.take(size)
        if address is not None:
            return address
        with signals_held_between_waits():  # an interrupt in between would leave units or the area to nobody
            given = self._supplier.private_units(plan_private(size), mid_iteration=True)
            with self.lock:
                area = self._arena.add_private_area(given)
                self._headroom.add(area.address, area.size)
                self._headroom.remove(area.address, size)
        return area.address

    # --- taking back -----------------------------------

    @signals_held()
    def retire(self, generation: Generation) -> None:
        """Let nothing more be allocated from a generation, and let it show no lane."""
        self._pools.end(generation.pool)
        with self.lock:
            generation.small.clear()
            generation.large = FreeRanges()
            self._arena.clear(generation.lane_slots(SlotState.LANE))
        self.retired.append(generation)

    @signals_held()
    def reap(self, live: LiveRanges) -> None:
        """Unmap the pages of retired generations in which nothing lives, and drop those generations that are empty.

        Parameters
        ----------
        live
            Where blocks of all retired generations live.
        """
        for generation in list(self.retired):
            dead, is_empty = self._dead_slots(generation, live)
            with self.lock:
                self._arena.clear(dead)
            if is_empty and self._drop(generation):
                self.retired.remove(generation)

    def figures(self, generations: Sequence[Generation], lane: int) -> PageBytes:
        """Return where this session's bytes are.

        Parameters
        ----------
        generations
            Those from which torch may allocate; the retired ones are counted as well.
        lane
            Bytes of the lane.
        """
        with self.lock:
            pools = [generation.pool for generation in (*generations, *self.retired)]
            held = sum(sum(list(pool.segments.values())) for pool in pools)
            return PageBytes(private=self._arena.private_bytes, lane=lane, away=self._arena.away_bytes, held=held)

    def has_overflow(self, generation: Generation) -> bool:
        """Return whether torch has segments for a lane's generation that are not in the lane."""
        return bool(self._outside(generation, list(generation.pool.segments.items())))

    @signals_held()
    def drop_headroom(self) -> None:
        """Release the units that are headroom only."""
        with self.lock:
            for start, end in self._headroom:
                whole = self._arena.slots_inside(start, end)
                for slot in whole:
                    self._headroom.remove(slot.address, slot.size)
                self._arena.remove(whole)

    def _dead_slots(self, generation: Generation, live: LiveRanges) -> tuple[list[Slot], bool]:
        """Return the private slots that can be unmapped, and whether nothing lives in the generation."""
        # callbacks add to them meanwhile
        segments = list(generation.pool.segments.items())
        # no block is there yet, but a thread is about to have one
        coming = LiveRanges(segment for segment in segments if segment[0] not in generation.pool.seen)

        def is_dead(slot: Slot) -> bool:
            return not live.touches(slot.address, slot.size) and not coming.touches(slot.address, slot.size)

        dead = [slot for slot in generation.lane_slots(SlotState.PRIVATE) if is_dead(slot)]
        is_empty = not any(live.touches(address, size) for address, size in segments)
        for start, end in self._outside(generation, segments):
            whole = self._arena.slots_inside(start, end)  # the rest of a slot may be another segment's
            dead += [slot for slot in whole if slot.state is SlotState.PRIVATE and is_dead(slot)]
        return dead, is_empty

    def _drop(self, generation: Generation) -> bool:
        """Let torch forget a pool in which nothing lives; its addresses are free again. False: not yet."""
        if not self._pools.drop(generation.pool):
            return False
        with self.lock:
            for start, end in self._outside(generation, list(generation.pool.segments.items())):
                for slot in list(self._arena.slots_within(start, end - start)):
                    if slot.state is SlotState.UNMAPPED:
                        self._arena.remove([slot])
                    else:
                        first, last = max(start, slot.address), min(end, slot.end)
                        self._headroom.add(first, last - first)
            if generation.area is not None:
                self._arena.remove(generation.area.slots)
        return True

    @staticmethod
    def _outside(generation: Generation, segments: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return start and end of the segments that are not at the lane's addresses."""
        area = generation.area
        return [
            (start, start + size)
            for start, size in segments
            if area is None or not area.address <= start < area.address + area.size
        ]
