"""Output of programs and of C code, which passes Python by: it comes before its cell's end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.session.harness import SessionUnderTest

#: seconds for which a thread that runs Python leaves others waiting: the one that takes output in comes last
_RARELY = 100
#: more than a pipe holds
_MANY = 100_000


@pytest.fixture(scope="module")
def session() -> Iterator[SessionUnderTest]:
    with SessionUnderTest(shows_programs=True) as session:
        session.run(f"import os, subprocess, sys\nsys.setswitchinterval({_RARELY})")
        yield session


def test_what_programs_print_comes_before_the_end_of_their_cell(session: SessionUnderTest) -> None:
    """Clients take what comes later for nobody's, or for the next cell's."""
    many = f"head -c {_MANY} /dev/zero | tr '\\\\0' x; echo -n done"
    for code in (
        "_ = os.write(1, b'done')",
        "_ = os.write(2, b'done')",
        "_ = subprocess.run(['echo', '-n', 'done'])",
        f"_ = subprocess.run({many!r}, shell=True)",
    ):
        for _ in range(20):
            assert session.run(code)["text"].endswith("done")


def test_characters_of_several_bytes_are_shown_wherever_a_read_ends(session: SessionUnderTest) -> None:
    """A stock kernel reads a thousand bytes at a time."""
    assert session.run("_ = os.write(1, '€'.encode() * 1000)")["text"] == "€" * 1000
