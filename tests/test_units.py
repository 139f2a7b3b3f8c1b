"""Amounts as people write them, and as they are written for people."""

from __future__ import annotations

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.units import format_bytes, parse_bytes, parse_duration


def test_memory_is_read_as_people_write_it() -> None:
    """With or without a space, in any case; also as it is shown, as far as its digits go."""
    texts = ("200 MiB", "8GiB", "8 GB", "8gb", "1.5 gib", " 512mib ", "100", "0 B")
    sizes = [200 << 20, 8 << 30, 8 * 10**9, 8 * 10**9, 3 << 29, 512 << 20, 100, 0]
    assert [parse_bytes(text) for text in texts] == sizes
    for size in (0, 1, 1023, 1 << 20, 3 << 29, 200 << 20, 123 << 30):
        assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05)


def test_what_is_no_memory_is_one_sentence() -> None:
    """That says what was wrong, and what is accepted."""
    refused = dict.fromkeys(("8-Gb", "8  GB", "-1", "9" * 400 + "GB"), "is not an amount of memory")
    refused |= {"8 lots": "unknown unit of memory; use one of B, KiB, KB", "25%": "makes no sense here"}
    for text, sentence in (refused | {"1.5": "unknown unit of memory"}).items():
        with pytest.raises(ConfigError, match=sentence):
            parse_bytes(text)


def test_durations_may_have_a_space() -> None:
    """Their units have one case: `m` is no `M`."""
    assert (parse_duration("250 ms"), parse_duration("2h")) == (0.25, 7200.0)
    for text in ("5 M", "9" * 400 + "s"):
        with pytest.raises(ConfigError, match="is not a duration"):
            parse_duration(text)
