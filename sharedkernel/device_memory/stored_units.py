"""Records of the store: units, lanes and accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from sharedkernel.device_memory.driver import Handle
from sharedkernel.device_memory.layout import UnitInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAccount:
    """The place of every byte; the figures for the ledger."""

    #: bytes of each lane, by its number
    lanes: dict[int, int]
    #: private bytes of each session, by its name
    private: dict[str, int]
    #: bytes that no lane uses any more and sessions still have mapped
    releasing: int
    #: bytes that are being created, or were for lanes in advance
    stock: int

    @classmethod
    def of(cls, units: Iterable[StoredUnit], lanes: Iterable[StoredLane]) -> UnitAccount:
        """Return the account of all units and lanes of a store."""
        sums, private = Counter[UnitPlace](), Counter[str]()
        for unit in units:
            sums[unit.place] += unit.size
            if unit.owner is not None:
                private[unit.owner] += unit.size
        return cls(
            lanes={lane.lane: lane.size for lane in lanes},
            private=dict(private),
            releasing=sums[UnitPlace.RELEASING],
            stock=sums[UnitPlace.ORDERED] + sums[UnitPlace.STOCK],
        )

    @property
    def total(self) -> int:
        """Bytes of device memory in use."""
        return sum(self.lanes.values()) + sum(self.private.values()) + self.releasing + self.stock


class UnitPlace(StrEnum):
    """The account that a unit is in."""

    ORDERED = "ordered"
    LANE = "lane"
    PRIVATE = "private"
    RELEASING = "releasing"
    STOCK = "stock"


@dataclass(slots=True, eq=False)
class StoredUnit:
    """A unit as the store knows it."""

    #: its number
    unit: int
    size: int
    #: None: only sessions have it, or it is not made yet
    handle: Handle | None = None
    #: the account it is in
    place: UnitPlace = UnitPlace.ORDERED
    #: sessions that were given it and have not released it
    holders: set[str] = field(default_factory=set)
    #: as long as there is a handle: each export takes the driver a millisecond
    descriptor: int | None = None
    #: of a private unit, the session that it is charged to; others may hold it that had it when it was a lane's
    owner: str | None = None

    @property
    def info(self) -> UnitInfo:
        """The unit by name."""
        return UnitInfo(self.unit, self.size)


@dataclass(slots=True)
class StoredLane:
    """A lane as the store knows it."""

    #: its number
    lane: int
    units: list[StoredUnit]
    occupant: str | None = None
    #: whose bytes are in it
    last_user: str | None = None
    #: it holds what its next user must not read: another's bytes, or whatever new units hold
    is_dirty: bool = False
    #: its occupant has to scrub it, and has not said yet that this is done
    is_scrubbed: bool = True

    @property
    def size(self) -> int:
        """Bytes of the lane."""
        return sum(unit.size for unit in self.units)


def by_size(units: Iterable[StoredUnit]) -> dict[int, list[StoredUnit]]:
    """Return units by their size, the last one first."""
    found: dict[int, list[StoredUnit]] = {}
    for unit in reversed(list(units)):
        found.setdefault(unit.size, []).append(unit)
    return found


def describe(units: Iterable[StoredUnit]) -> str:
    """Return how many bytes are where, and which sessions' processes still have to release some, for a log."""
    sums = Counter[str]()
    for unit in units:
        sums[unit.place] += unit.size
        if unit.place is UnitPlace.RELEASING:
            sums.update(dict.fromkeys(sorted(unit.holders), unit.size))
    return ", ".join(f"{what} {size}" for what, size in sums.items())
