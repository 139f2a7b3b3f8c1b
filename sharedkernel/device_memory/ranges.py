"""Ranges of addresses: those that are free, given out and taken back; and those in which something lives."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class FreeRanges:
    """Free ranges of addresses, joined wherever they touch.

    Taking is best fit, lowest address first, so that large ranges stay whole.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    @property
    def total(self) -> int:
        """Bytes that are free."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, size: int) -> None:
        """Make a range free; it must not be so already."""
        end = start + size
        index = bisect_left(self._starts, start)
        assert index == 0 or self._ends[index - 1] <= start, f"{start:#x} is free already"
        assert index == len(self._starts) or end <= self._starts[index], f"{end:#x} is free already"
        if index and self._ends[index - 1] == start:
            index -= 1
            start = self._starts.pop(index)
            del self._ends[index]
        if index < len(self._starts) and self._starts[index] == end:
            del self._starts[index]
            end = self._ends.pop(index)
        self._starts.insert(index, start)
        self._ends.insert(index, end)

    def take(self, size: int) -> int | None:
        """Take *size* bytes and return their start; None when no free range is long enough."""
        fitting = [
            (end - start, index)
            for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True))
            if end - start >= size
        ]
        if not fitting:
            return None
        _, index = min(fitting)
        start = self._starts[index]
        self.remove(start, size)
        return start

    def remove(self, start: int, size: int) -> None:
        """Take exactly this range, all of which must be free."""
        end = start + size
        index = bisect_right(self._starts, start) - 1
        assert self.covers(start, size), f"{size} bytes at {start:#x} are not free"
        old_start, old_end = self._starts.pop(index), self._ends.pop(index)
        if end < old_end:
            self._starts.insert(index, end)
            self._ends.insert(index, old_end)
        if old_start < start:
            self._starts.insert(index, old_start)
            self._ends.insert(index, start)

    def covers(self, start: int, size: int) -> bool:
        """Return whether all of a range is free."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and start + size <= self._ends[index]


class LiveRanges:
    """Ranges in which something lives, to be asked whether a page has anything of them.

    Parameters
    ----------
    ranges
        Start and size of each, in any order.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, size in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], start + size)
            elif size:
                self._starts.append(start)
                self._ends.append(start + size)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def touches(self, start: int, size: int) -> bool:
        """Return whether anything lives in a range."""
        index = bisect_left(self._starts, start + size) - 1
        return index >= 0 and self._ends[index] > start
