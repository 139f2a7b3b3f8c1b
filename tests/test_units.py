"""Amounts as people write them, and as they are written for people."""

from __future__ import annotations

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.units import format_bytes, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200 MiB", 200 << 20),
        ("8GiB", 8 << 30),
        ("8 GB", 8 * 10**9),
        ("8gb", 8 * 10**9),
        ("1.5 gib", 3 << 29),
        (" 512mib ", 512 << 20),
        ("100", 100),
        ("0 B", 0),
    ],
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    """With or without a space, in any case."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("size", [0, 1, 1023, 1 << 20, 3 << 29, 200 << 20, 123 << 30])
def test_what_is_shown_can_be_written(size: int) -> None:
    """A quota that is copied from the status is the quota, as far as its digits go."""
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("8-Gb", "is not an amount of memory"),
        ("8  GB", "is not an amount of memory"),
        ("-1", "is not an amount of memory"),
        ("8 lots", "unknown unit of memory; use one of B, KiB, KB"),
        ("1.5", "unknown unit of memory"),
        ("25%", "makes no sense here"),
    ],
)
def test_what_is_no_memory_is_one_sentence(text: str, sentence: str) -> None:
    """That says what was wrong, and what is accepted."""
    with pytest.raises(ConfigError, match=sentence):
        parse_bytes(text)


def test_durations_may_have_a_space() -> None:
    """Their units have one case: `m` is no `M`."""
    assert (parse_duration("250 ms"), parse_duration("2h")) == (0.25, 7200.0)
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration("5 M")
