"""The executor's side of device memory: it creates every unit, and knows which account each one is in.

A unit is in exactly one account: *ordered*, in *stock*, a *lane*, *private* to a session, or *releasing*. Ordered are
units that are being created, and in stock those that were for a lane before it is made or changed: to create and export
many takes the driver long. A unit is releasing when its lane has no use for it any more but sessions still have it
mapped: memory is free when it is gone from every process, not when somebody asked for it. So what the accounts add up
to is what the device really lacks.

The store keeps the handles of lanes' units, to give them to more sessions. Of private units it lets go as soon as
their session has them: then they vanish with its process, whatever happens to the executor. Memory that a user had
goes back to the driver, and none is passed on to others but a lane's, which is scrubbed on the way
(:meth:`LaneStore.begin_turn`).

A lane is *occupied* from the start of a turn until nothing of that session's iteration is left in it. Occupied lanes
do not change. Calls raise errors of :mod:`sharedkernel.device_memory.driver` and have then changed nothing. There is
no locking: one thread, the executor's, calls; only :meth:`LaneStore.make` may run in another.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from sharedkernel.device_memory.driver import (
    InvalidMapping,
    LaneOccupied,
    MemoryDriver,
    OutOfDeviceMemory,
    release_handle,
)
from sharedkernel.device_memory.layout import LaneLayout, UnitInfo, plan_lane
from sharedkernel.device_memory.stored_units import StoredLane, StoredUnit, UnitAccount, UnitPlace, by_size, describe
from sharedkernel.ipc.seqpacket import MAX_DESCRIPTORS


class LaneStore:
    """Creates, counts and frees the units of one device.

    Parameters
    ----------
    driver
        Creates and exports; this side maps nothing.
    capacity
        Bytes that may be in use at most; None: what the driver gives.
    after
        Units' numbers are larger than this. Sessions outlive their executor, with the units that it gave them: what
        the next one gives must have other numbers.
    """

    def __init__(self, driver: MemoryDriver, *, capacity: int | None = None, after: int = 0) -> None:
        self._driver = driver
        self._capacity = capacity
        self._lanes: dict[int, StoredLane] = {}
        #: units that were created for a lane in advance
        self._stock: dict[int, list[StoredUnit]] = {}
        #: every unit there is
        self._units: dict[int, StoredUnit] = {}
        #: bytes of device memory that are in units
        self.used = 0
        self._last_number = after

    # --- lanes -----------------------------------

    def create_lane(self, lane: int, size: int) -> LaneLayout:
        """Make a lane for iterations that need *size* bytes.

        Raises
        ------
        OutOfDeviceMemory
            When there is no room for it.
        """
        if lane in self._lanes:
            raise InvalidMapping(f"lane {lane} exists already.")
        units = self._obtain_for_lane(lane, Counter(plan_lane(size)))
        at_hand = by_size(units)
        units = [at_hand[each].pop() for each in plan_lane(size)]
        self._lanes[lane] = StoredLane(lane, units, is_dirty=not self._driver.is_new_memory_clean)
        return self.layout(lane)

    def resize_lane(self, lane: int, size: int) -> LaneLayout:
        """Give a lane the units that *size* bytes need.

        Raises
        ------
        LaneOccupied
            When an iteration uses it.
        OutOfDeviceMemory
            When there is no room for it.
        """
        entry = self._empty(lane, "resized")
        sizes = plan_lane(size)
        missing = self._missing(lane, size)
        # in the order of addresses, so that a lane that grows keeps its units where they are
        at_hand = by_size([*entry.units, *self._obtain_for_lane(lane, missing)])
        units = [at_hand[each].pop() for each in sizes]
        if units != entry.units:
            entry.units = units
            entry.is_dirty |= bool(missing) and not self._driver.is_new_memory_clean
            self._part_with(unit for units in at_hand.values() for unit in units)
        return self.layout(lane)

    def remove_lane(self, lane: int) -> None:
        """Remove a lane; its units are releasing until every session has released them."""
        entry = self._empty(lane, "removed")
        del self._lanes[lane]
        self._part_with(entry.units)
        self.drop_stock(lane)

    # --- units in advance -----------------------------------

    def missing(self, lane: int, size: int) -> list[int]:
        """Return the sizes of the units to create so that a lane, which may not exist yet, has *size* bytes."""
        return list((self._missing(lane, size) - self._stocked(lane)).elements())

    def order(self, sizes: Sequence[int]) -> list[StoredUnit]:
        """Count units of these sizes, which :meth:`make` creates; then stock them, give them or cancel them.

        Raises
        ------
        OutOfDeviceMemory
            When there is no room for all of them.
        """
        if any(size <= 0 or size % self._driver.granularity for size in sizes):
            raise InvalidMapping(f"units of device memory are multiples of {self._driver.granularity} bytes.")
        total = sum(sizes)
        if self._capacity is not None and self.used + total > self._capacity:
            raise OutOfDeviceMemory(
                f"{total} bytes of device memory do not fit: {self.used} of {self._capacity} are in use "
                f"({describe(self._units.values())})."
            )
        units = [StoredUnit(number, size) for number, size in enumerate(sizes, self._last_number + 1)]
        self._units.update((unit.unit, unit) for unit in units)
        self._last_number += len(units)
        self.used += total
        return units

    def make(self, units: Iterable[StoredUnit]) -> None:
        """Create and export ordered units. Any thread may do this: nothing else uses them meanwhile.

        Raises
        ------
        DeviceMemoryError
            When the driver cannot: cancel all of them.
        """
        for unit in units:
            unit.handle = self._driver.create(unit.size)
            unit.descriptor = self._driver.export(unit.handle)

    def cancel(self, units: Iterable[StoredUnit]) -> None:
        """Free units that were ordered, made or not, or are in stock."""
        for unit in units:
            self._forget(unit)

    def stock(self, lane: int, units: Iterable[StoredUnit]) -> None:
        """Put made units into the stock of a lane."""
        for unit in units:
            unit.place = UnitPlace.STOCK
            self._stock.setdefault(lane, []).append(unit)

    def drop_stock(self, lane: int) -> None:
        """Free the units that were created for a lane and are not in it."""
        self.cancel(self._stock.pop(lane, ()))

    def _stocked(self, lane: int) -> Counter[int]:
        return Counter(unit.size for unit in self._stock.get(lane, ()))

    def _missing(self, lane: int, size: int) -> Counter[int]:
        """Return the sizes of the units that a lane lacks, those in stock included."""
        entry = self._lanes.get(lane)
        return Counter(plan_lane(size)) - Counter(unit.size for unit in (entry.units if entry is not None else ()))

    def _obtain_for_lane(self, lane: int, sizes: Counter[int]) -> list[StoredUnit]:
        """Return units of these sizes, out of stock as far as it has them; the rest of the stock is freed."""
        stocked = self._stocked(lane)
        new = self._obtain(list((sizes - stocked).elements()))
        at_hand = by_size(self._stock.pop(lane, ()))
        taken = [at_hand[size].pop() for size in (sizes & stocked).elements()]
        for unit in [*taken, *new]:
            unit.place = UnitPlace.LANE
        self.cancel(unit for units in at_hand.values() for unit in units)
        return [*taken, *new]

    # --- turns -----------------------------------

    def layout(self, lane: int) -> LaneLayout:
        """Return what the lane is made of now."""
        return LaneLayout(tuple(unit.info for unit in self._lane(lane).units))

    def begin_turn(self, lane: int, session: str, user: str) -> bool:
        """Let a session's iterations use the lane; return whether it has to scrub it first.

        It has to when another user had the lane before, or when units in it are new and the driver does not say what
        they hold.

        Raises
        ------
        LaneOccupied
            When something of another session's iteration is in it.
        """
        entry = self._lane(lane)
        if entry.occupant not in (None, session):
            raise LaneOccupied(f"lane {lane} is session {entry.occupant}'s until that one has handed it over.")
        must_scrub = entry.is_dirty or entry.last_user not in (None, user)
        entry.occupant, entry.last_user, entry.is_dirty = session, user, False
        entry.is_scrubbed = not must_scrub
        return must_scrub

    def end_turn(self, lane: int, session: str, *, unused: bool = False) -> None:
        """Record that nothing of the session's iteration is left in the lane.

        Parameters
        ----------
        lane, session
            Which, and whose.
        unused
            The turn came to nothing: if the lane was to be scrubbed, it was not.
        """
        entry = self._lane(lane)
        if entry.occupant == session:
            entry.occupant = None
            entry.is_dirty |= unused and not entry.is_scrubbed

    # --- giving units to sessions -----------------------------------

    def share_lane(self, lane: int, session: str, units: Container[int] | None = None) -> list[UnitInfo]:
        """Make the session a holder of the lane's units, or of some of them; return those that it did not hold yet."""
        new = [
            unit
            for unit in self._lane(lane).units
            if session not in unit.holders and (units is None or unit.unit in units)
        ]
        for unit in new:
            unit.holders.add(session)
        return [unit.info for unit in new]

    def give_private(self, session: str, sizes: Sequence[int]) -> list[UnitInfo]:
        """Make units of these sizes private to a session.

        Raises
        ------
        OutOfDeviceMemory
            When there is no room for all of them.
        """
        return self.give(session, self._obtain(sizes))

    def give(self, session: str, units: Sequence[StoredUnit]) -> list[UnitInfo]:
        """Make units that were ordered and made private to a session."""
        for unit in units:
            unit.place, unit.owner = UnitPlace.PRIVATE, session
            unit.holders.add(session)
        return [unit.info for unit in units]

    def keep(self, session: str, units: Iterable[int]) -> None:
        """Make units of the lane that a session occupies private to it, with what is in them; the lane has none then.

        For a device on which there is no room to copy what the session leaves there. Others who had a turn in the lane
        release its units when they get theirs.

        Raises
        ------
        InvalidMapping
            When the session occupies no lane, or the units are not the lane's.
        """
        entry = next((entry for entry in self._lanes.values() if entry.occupant == session), None)
        wanted = set(units)
        kept = [unit for unit in entry.units if unit.unit in wanted] if entry is not None else []
        if entry is None or len(kept) != len(wanted):
            raise InvalidMapping(f"session {session} cannot keep units that are not of a lane of its own now.")
        for unit in kept:
            self._release(unit)
            unit.place, unit.owner = UnitPlace.PRIVATE, session
        self._part_with(unit for unit in entry.units if unit.place is UnitPlace.LANE)
        entry.units = []

    def exported(self, units: Iterable[UnitInfo]) -> Iterator[tuple[list[UnitInfo], list[int]]]:
        """Yield units with their descriptors, as many at a time as one message carries.

        The descriptors may be closed when the next batch is asked for: send them before.
        """
        every = list(units)
        for start in range(0, len(every), MAX_DESCRIPTORS):
            batch = every[start : start + MAX_DESCRIPTORS]
            yield batch, [self._descriptor(info.unit) for info in batch]

    def confirm(self, session: str, units: Iterable[int]) -> None:
        """Record that the session has imported these private units: from now on they live and die with it."""
        for number in units:
            unit = self._units.get(number)
            if unit is not None and unit.place is UnitPlace.PRIVATE and session in unit.holders:
                self._release(unit)

    def take_back(self, session: str, units: Iterable[int]) -> None:
        """Record that the session has released units: it has no mapping, handle or descriptor of them left."""
        for number in units:
            unit = self._units.get(number)
            if unit is not None:
                self._let_go(session, unit)

    def session_gone(self, session: str) -> None:
        """Record that the session's process and all its children are gone: their memory is free."""
        for entry in self._lanes.values():
            if entry.occupant == session:
                self.end_turn(entry.lane, session, unused=True)
        for unit in list(self._units.values()):
            self._let_go(session, unit)

    # --- figures -----------------------------------

    @property
    def is_nearly_full(self) -> bool:
        """Whether less than an eighth of the capacity is left."""
        return self._capacity is not None and self.used > self._capacity - self._capacity // 8

    def account(self) -> UnitAccount:
        """Return where every byte is."""
        return UnitAccount.of(self._units.values(), self._lanes.values())

    def validate(self) -> None:
        """Check that every unit is in one account, and held by whom that account allows."""
        in_lanes = [unit for entry in self._lanes.values() for unit in entry.units]
        assert len(set(in_lanes)) == len(in_lanes), "a unit is in lanes twice"
        assert set(in_lanes) == {unit for unit in self._units.values() if unit.place is UnitPlace.LANE}
        for unit in self._units.values():
            match unit.place:
                case UnitPlace.PRIVATE:
                    assert unit.owner in unit.holders, unit
                case UnitPlace.RELEASING:
                    assert unit.holders, unit
                    assert unit.handle is None, unit
                case UnitPlace.ORDERED | UnitPlace.STOCK:
                    assert not unit.holders, unit
        in_stock = [unit for units in self._stock.values() for unit in units]
        assert set(in_stock) == {unit for unit in self._units.values() if unit.place is UnitPlace.STOCK}
        account = self.account()
        assert account.total == self.used == sum(unit.size for unit in self._units.values()), account
        assert self._capacity is None or self.used <= self._capacity, account

    # --- units -----------------------------------

    def _obtain(self, sizes: Sequence[int]) -> list[StoredUnit]:
        """Return new units of these sizes, made here and now; all or none."""
        units = self.order(sizes)
        try:
            self.make(units)
        except BaseException:
            self.cancel(units)
            raise
        return units

    def _release(self, unit: StoredUnit) -> None:
        if unit.descriptor is not None:
            os.close(unit.descriptor)
            unit.descriptor = None
        if unit.handle is not None:
            release_handle(self._driver, unit.handle)
            unit.handle = None

    def _forget(self, unit: StoredUnit) -> None:
        """Free a unit that nobody has."""
        self._release(unit)
        del self._units[unit.unit]
        self.used -= unit.size

    def _part_with(self, units: Iterable[StoredUnit]) -> None:
        """Free units that no lane has any more; those that sessions still have are releasing until then."""
        for unit in units:
            if unit.holders:
                self._release(unit)
                unit.place = UnitPlace.RELEASING
            else:
                self._forget(unit)

    def _let_go(self, session: str, unit: StoredUnit) -> None:
        if session not in unit.holders:
            return
        unit.holders.discard(session)
        if not unit.holders and unit.place is not UnitPlace.LANE:
            self._forget(unit)
        elif unit.owner == session:
            unit.place, unit.owner = UnitPlace.RELEASING, None
            self._release(unit)

    def _descriptor(self, number: int) -> int:
        unit = self._units.get(number)
        if unit is None or unit.descriptor is None:
            raise InvalidMapping(f"there is no unit {number} to give away.")
        return unit.descriptor

    def _lane(self, lane: int) -> StoredLane:
        try:
            return self._lanes[lane]
        except KeyError:
            raise InvalidMapping(f"there is no lane {lane}.") from None

    def _empty(self, lane: int, change: str) -> StoredLane:
        entry = self._lane(lane)
        if entry.occupant is not None:
            raise LaneOccupied(f"lane {lane} cannot be {change} while an iteration of {entry.occupant} is in it.")
        return entry
