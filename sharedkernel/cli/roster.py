"""Rosters: one name a line, or a table as spreadsheets and course systems export it.

A table is text with commas, semicolons or tabs, and its first line names the columns. Users are called as in a column
`user` or `username`, else by what stands before the @ of their `email`, else as in `name`. Empty lines, and in lists
lines that begin with #, are left out.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import is_user_name

#: bytes and people of the largest roster
_MOST_BYTES, MOST_PEOPLE = 1 << 20, 500
#: faults that are named one by one
_MOST_NAMED = 5
_DELIMITERS = ",;\t"
#: names of the columns, in lower case, the one that is used first
_USER_COLUMNS = ("user", "username", "login", "name")
_EMAIL_COLUMNS = ("email", "e-mail", "mail")
_COLUMNS = frozenset((*_USER_COLUMNS, *_EMAIL_COLUMNS))


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody in a roster."""

    user: str
    email: str = ""


def read_roster(name: str) -> list[Person]:
    """Return who is in a roster.

    Parameters
    ----------
    name
        Of the file; "-": standard input.

    Raises
    ------
    ConfigError
        When it cannot be read, or one of its lines cannot be used; with the number of each such line.
    """
    try:
        if Path(name).is_fifo():
            raise ConfigError(f"the roster {name} is a pipe; write - to read from standard input.")
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the roster {name} cannot be read: {error.strerror}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"the roster {name} is larger than {_MOST_BYTES >> 20} MiB; it should hold names alone.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}, line {line}: this is no UTF-8; save the roster as UTF-8.") from None
    return parse_roster(text, name)


def parse_pasted(text: str) -> list[Person]:
    """Return who is in a roster that somebody has pasted, or in one line of names; the latter are not checked.

    Raises
    ------
    ConfigError
        When one of several lines cannot be used; with the number of each such line.
    """
    names = re.findall(r"[^\s,;]+", text)
    is_line = names and len(text.strip().splitlines()) == 1
    return [Person(name) for name in names] if is_line else parse_roster(text, "text")


def parse_roster(text: str, name: str) -> list[Person]:
    """Return who is in a roster.

    Parameters
    ----------
    text
        Its text.
    name
        What it is called in errors.

    Raises
    ------
    ConfigError
        When one of its lines cannot be used; with the number of each such line.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    delimiter = _delimiter(lines[0][1]) if lines else None
    try:
        if delimiter is None:
            found = [(number, Person(line.strip())) for number, line in lines if not line.lstrip().startswith("#")]
        else:
            found = list(_table(text, delimiter, name))
    except csv.Error as error:
        raise ConfigError(f"the roster {name} is no table that can be read ({error}); save it as CSV.") from None
    faults = list(_faults(found))
    if faults:
        named = [f"{name}, line {number}: {fault}" for number, fault in faults[:_MOST_NAMED]]
        more = f"\n({len(faults) - _MOST_NAMED} more such lines)" if len(faults) > _MOST_NAMED else ""
        raise ConfigError("\n".join(named) + more)
    if not found:
        raise ConfigError(f"the roster {name} has nobody in it; write one name a line.")
    if len(found) > MOST_PEOPLE:
        raise ConfigError(f"the roster {name} has {len(found)} people; a class has at most {MOST_PEOPLE}.")
    return [person for _, person in found]


def _delimiter(first: str) -> str | None:
    """Return what separates the columns of a table with this *first* line; None: it is a list of names."""
    found = next((delimiter for delimiter in _DELIMITERS if delimiter in first), None)
    return "," if found is None and first.strip().lower() in _COLUMNS else found


def _table(text: str, delimiter: str, name: str) -> Iterator[tuple[int, Person]]:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    # each with the number of its last line: a quoted cell may have several
    rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    (first, columns), *rest = [row for row in rows if any(row[1])] or [(1, [])]
    columns = [column.lower() for column in columns]
    user = next((columns.index(column) for column in _USER_COLUMNS if column in columns), None)
    email = next((columns.index(column) for column in _EMAIL_COLUMNS if column in columns), None)
    if user is None and email is None:
        raise ConfigError(
            f"{name}, line {first}: no column is called user, username, name or email; name the columns in the "
            "first line, or write one name a line."
        )
    if user is not None and columns[user] == "name" and email is not None:
        user = None  # people's names are rarely users' names
    for number, row in rest:
        address = row[email] if email is not None and email < len(row) else ""
        own = row[user] if user is not None and user < len(row) else ""
        yield number, Person(own if user is not None else address.partition("@")[0], address)


def _faults(found: Sequence[tuple[int, Person]]) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that cannot be used, and what is wrong with it."""
    seen: dict[str, int] = {}
    for number, person in found:
        if not person.user:
            yield number, "its column `user`, `email` or `name` is empty; fill it in, or remove the line."
        elif not is_user_name(person.user):
            yield (
                number,
                f"{person.user!r} cannot be a user's name; use up to 64 letters, digits and . _ @ + - (not as the "
                "first), in a column `user` if there are other columns.",
            )
        elif not person.email.isprintable():
            yield number, f"{person.email!r} is no address; write it in one line."
        elif (before := seen.setdefault(person.user, number)) != number:
            yield number, f"{person.user} is in line {before} already."
