"""The comparison of what a user wants with what their quota leaves."""

from __future__ import annotations

import pytest

from sharedkernel.quota_check import CountedMemory, QuotaUse, count, count_others


@pytest.mark.parametrize(
    ("use", "more", "left", "exceeded_by"),
    [
        (QuotaUse(quota=100, sessions=60, shelf=10), 30, 30, 0),
        (QuotaUse(quota=100, sessions=60, shelf=10), 31, 30, 1),
        (QuotaUse(quota=100, sessions=120), 5, -20, 25),
        (QuotaUse(quota=100, sessions=120), 0, -20, 0),
        (QuotaUse(quota=0, sessions=0), 1, 0, 1),
        (QuotaUse(quota=None, sessions=120), 1 << 60, None, 0),
    ],
)
def test_what_the_quota_leaves_fits_and_no_more(use: QuotaUse, more: int, left: int | None, exceeded_by: int) -> None:
    """Sessions and shelf count together; nothing more always fits, and without a quota everything does."""
    assert (use.left, use.exceeded_by(more)) == (left, exceeded_by)


def test_what_counts_is_what_is_there_and_the_largest_known_need() -> None:
    """Needs count once: iterations take turns in the same bytes."""
    sessions = [
        CountedMemory(persistent=100, needed=300),
        CountedMemory(persistent=50, live=200, needed=250),
        CountedMemory(persistent=10, needed=300),
        CountedMemory(persistent=1),
    ]
    assert count(sessions) == 161 + 200 + 300
    assert count(sessions[1:2]) == 300
    assert count([]) == 0
    assert count_others(sessions) == [count(sessions[:i] + sessions[i + 1 :]) for i in range(len(sessions))]
    assert count_others(sessions[1:2]) == [0]
