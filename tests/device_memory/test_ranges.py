"""Ranges of addresses against a set of single bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.device_memory.ranges import FreeRanges, LiveRanges

_SPAN = 64
_ranges = st.lists(st.tuples(st.integers(0, _SPAN), st.integers(1, 12)), max_size=12)


@given(_ranges, st.lists(st.integers(1, 16), max_size=12))
def test_free_ranges_are_the_bytes_that_were_added_and_not_taken(added, taken):
    """Nothing is given out twice, and whatever is free side by side is found as one."""
    free, model = FreeRanges(), set()
    for start, size in added:
        wanted = set(range(start, start + size))
        if wanted & model:
            with pytest.raises(AssertionError):
                free.add(start, size)
        else:
            free.add(start, size)
            model |= wanted
    for size in taken:
        start = free.take(size)
        if start is None:
            assert not any(set(range(at, at + size)) <= model for at in range(_SPAN + 12))
        else:
            assert set(range(start, start + size)) <= model
            model -= set(range(start, start + size))
        assert free.total == len(model)
        assert {byte for first, last in free for byte in range(first, last)} == model
    starts = [first for first, _ in free]
    assert all(first not in model for first in (start - 1 for start in starts))


@given(_ranges, st.tuples(st.integers(0, _SPAN), st.integers(1, 12)))
def test_live_ranges_touch_what_they_share_a_byte_with(ranges, asked):
    """Overlapping ones count as one."""
    model = {byte for start, size in ranges for byte in range(start, start + size)}
    live = LiveRanges(ranges)
    start, size = asked
    assert live.touches(start, size) == bool(model & set(range(start, start + size)))
    assert {byte for first, last in live for byte in range(first, last)} == model
