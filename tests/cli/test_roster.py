"""Rosters as people have them, and what is said of those that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.cli.roster import MOST_PEOPLE, Person, parse_roster, read_roster
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import is_user_name


@pytest.mark.parametrize(
    ("text", "people"),
    [
        ("# the morning group\n\n  ada  \r\ngrace", [("ada", ""), ("grace", "")]),
        ("user,email\nada,ada@x.org\n\ngrace,\n", [("ada", "ada@x.org"), ("grace", "")]),
        ("Name;Username;E-Mail\nAda Lovelace;ada;ada@x.org", [("ada", "ada@x.org")]),
        ('name\temail\n"Lovelace, Ada"\tada.l@x.org', [("ada.l", "ada.l@x.org")]),
        ("number,login\n1,ada\n2,grace\n", [("ada", ""), ("grace", "")]),
        ('name,note\nada,"two\nlines"\r\ngrace,', [("ada", ""), ("grace", "")]),
    ],
)
def test_lists_and_tables_are_read(text: str, people: list[tuple[str, str]]) -> None:
    """With whatever separates the columns, and whatever else is in them."""
    assert parse_roster(text, "roster.csv") == [Person(*person) for person in people]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user,email\n", "the roster roster.csv has nobody in it"),
        ("ada\nAda Lovelace\n", "roster.csv, line 2: 'Ada Lovelace' cannot be a user's name; use up to 64 letters"),
        ("ada\n\ngrace\nada\n", "roster.csv, line 4: ada is in line 1 already."),
        ("first,last\nAda,Lovelace\n", "roster.csv, line 1: no column is called user, username, name or email"),
        ("user,email\nada\n,grace@x.org\n", "roster.csv, line 3: its column `user`, `email` or `name` is empty"),
        ("\n".join(["x y"] * 7), "(2 more such lines)"),
        ('user,email\n"ada\nmallory",ada@x.org', "roster.csv, line 3: 'ada\\nmallory' cannot be a user's name"),
        ("user\nada\x0bmallory", "roster.csv, line 2: 'ada\\x0bmallory' cannot be a user's name"),
        ('user,email\nada,"a@x.org\nBcc: all@x.org"', "roster.csv, line 3: 'a@x.org\\nBcc: all@x.org' is no address"),
        ('user,email\n"ada,a@x.org\ngrace,', "is no table that can be read (unexpected end of data); save it as CSV."),
        ("\n".join(f"u{n}" for n in range(MOST_PEOPLE + 1)), "has 501 people; a class has at most 500."),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, sentence: str) -> None:
    """Each of the first five lines."""
    with pytest.raises(ConfigError) as refused:
        parse_roster(text, "roster.csv")
    assert sentence in str(refused.value)


def test_files_that_are_no_rosters_are_refused(tmp_path: Path) -> None:
    """Missing ones, directories, what is too large, and what is no UTF-8; a mark at the beginning is left out."""
    path = tmp_path / "roster.csv"
    for content, sentence in [
        (None, "cannot be read: No such file"),
        (b"a\n" * (1 << 20), "is larger than 1 MiB"),
        ("ada\njos\xe9\n".encode("latin-1"), "line 2: this is no UTF-8"),
    ]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=sentence):
            read_roster(str(path))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_roster(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe; write - to read from standard input"):
        read_roster(str(tmp_path / "pipe"))
    path.write_text("user\nada\n", encoding="utf-8-sig")
    assert read_roster(str(path)) == [Person("ada")]


@given(st.text(max_size=300))
def test_whatever_the_text_the_answer_is_names_or_a_sentence(text: str) -> None:
    """No two people have one name."""
    try:
        people = parse_roster(text, "roster.csv")
    except ConfigError:
        return
    users = [person.user for person in people]
    assert len(set(users)) == len(users)
    assert all(map(is_user_name, users))
