"""The layout of a lane: units, each with a handle of its own, since only whole handles can be remapped.

Torch's allocator takes blocks up to 1 MiB from segments of 2 MiB and all others from large segments. A lane has an
area for each: units of 2 MiB for the small blocks, where most survivors are, and units as large as the lane's size
suggests for the rest. Small units keep little memory back when a block in one survives; large ones are quick to
create and to map: whatever its size, on an H100 each takes 0.6 to 1.1 ms to export where there is no context, as in the
executor, and 60 µs to map and unmap. Up to 256 MiB a lane has small units only. No lane is smaller than
:data:`LEAST_LANE`, since torch would ask for a segment of 20 MiB even for a block of 2 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedkernel.device_memory.driver import MIB
from sharedkernel.units import round_up

#: torch's segment for small blocks, and the smallest unit
SMALL_UNIT = 2 * MIB
#: sizes of a unit, smallest first
UNIT_SIZES = (SMALL_UNIT, 16 * MIB, 32 * MIB, 64 * MIB)
#: more units than this in a lane, and they are made larger
_MANY_UNITS = 128
#: the small blocks' part of a lane, and its bounds in bytes
_SMALL_PART, _SMALL_LEAST, _SMALL_MOST = 8, 2 * SMALL_UNIT, 64 * MIB
#: what torch's allocator may lose between large blocks, as a part of them
_LOST_PART = 32
#: torch's segment for blocks between 1 and 10 MiB
LARGE_SEGMENT = 20 * MIB
#: bytes of the smallest lane
LEAST_LANE = _SMALL_LEAST + LARGE_SEGMENT


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """A unit by name."""

    #: its number, of which there is no second for as long as the executor's memory lives
    unit: int
    size: int


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """A lane's units in the order of their addresses: those for small blocks first."""

    units: tuple[UnitInfo, ...]

    @property
    def size(self) -> int:
        """Bytes of the lane."""
        return sum(unit.size for unit in self.units)


@dataclass(frozen=True, slots=True)
class GivenUnit:
    """A unit as it arrives in a session, which imports it and closes the descriptor."""

    unit: int
    size: int
    descriptor: int

    @property
    def info(self) -> UnitInfo:
        """The unit by name."""
        return UnitInfo(self.unit, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBytes:
    """The place of a session's memory that comes by page, in bytes."""

    #: mapped, and private to the session: what is charged to it
    private: int = 0
    #: of the lane that is mapped
    lane: int = 0
    #: moved off the device at unchanged addresses, which torch still counts
    away: int = 0
    #: what torch counts as held of all this, whether or not anything is mapped there
    held: int = 0


def lane_bytes(need: int) -> int:
    """Return the size of a lane for iterations that need *need* bytes: what the ledger has to charge."""
    return max(LEAST_LANE, round_up(need, SMALL_UNIT))


def lane_for(need: int) -> int:
    """Return the size of a lane in which iterations fit that have *need* bytes in tensors at their peak.

    Besides them it needs what is set aside for small blocks, and what torch's allocator loses between large ones.
    """
    return lane_bytes(need + min(-(-need // (_SMALL_PART - 1)), _SMALL_MOST) + need // _LOST_PART + _SMALL_LEAST)


def small_bytes(size: int) -> int:
    """Return how much of a lane of *size* bytes is for small blocks."""
    wanted = round_up(size // _SMALL_PART, SMALL_UNIT)
    return min(max(_SMALL_LEAST, min(wanted, _SMALL_MOST)), size - LARGE_SEGMENT)


def plan_lane(size: int) -> list[int]:
    """Return the sizes of the units of a lane of :func:`lane_bytes` of *size*, in the order of their addresses."""
    total = lane_bytes(size)
    small = small_bytes(total)
    large = total - small
    unit = next((each for each in UNIT_SIZES if large <= each * _MANY_UNITS), UNIT_SIZES[-1])
    # what is left over stays in small units, so a lane is never larger than it has to be
    whole, rest = divmod(large, unit)
    return [SMALL_UNIT] * (small // SMALL_UNIT) + [unit] * whole + [SMALL_UNIT] * (rest // SMALL_UNIT)


def plan_private(size: int) -> list[int]:
    """Return the sizes of units for *size* bytes of one session's own: few handles, and no byte beyond the page."""
    left, sizes = round_up(size, SMALL_UNIT), []
    for unit in reversed(UNIT_SIZES):
        count, left = divmod(left, unit)
        sizes += [unit] * count
    return sizes
