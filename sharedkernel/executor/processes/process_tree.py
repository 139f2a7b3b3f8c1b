"""Processes as the system lists them: their states, their parents, and which descend from which; and their names."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import psutil

#: ancestors that are looked at: a chain is seldom longer, and changes while it is read
_MOST_ANCESTORS = 64
#: characters of a program's name that people see
_MOST_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process at one moment."""

    #: one letter, as `ps` shows it
    state: str
    parent: int
    #: start time in clock ticks since boot; distinguishes it from a later one with the same id
    started: int
    #: as `os.waitpid` will give it to the parent of one that has ended; 0 also of what this process may not see
    status: int


def read_stat(pid: int) -> ProcessStat | None:
    """Return the present state of process *pid*; None if it is not there.

    Raises
    ------
    OSError
        When that cannot be found out now, as without a free descriptor.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            after_name = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessStat(after_name[0].decode(), int(after_name[1]), int(after_name[19]), int(after_name[49]))


def real_user(pid: int) -> int | None:
    """Return the user id that process *pid* runs under; None if it is not there, or may not be looked at."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).uids().real)
    return None


def all_children() -> dict[int, list[int]]:
    """Return the children of all processes."""
    found: dict[int, list[int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, IndexError):
            if (stat := read_stat(pid)) is not None:
                found.setdefault(stat.parent, []).append(pid)
    return found


def tree(roots: Iterable[int], children: Mapping[int, Sequence[int]]) -> set[int]:
    """Return *roots* and all that descends from them."""
    found = set(roots)
    waiting = list(found)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found  # ids are given again while this is read
        waiting += new
        found |= new
    return found


def find_ancestor(pid: int, leaders: Iterable[int]) -> tuple[int, int] | None:
    """Return the nearest of *leaders* above process *pid*, and its child on the way there.

    A leader is its own. None: *pid* descends from none of them.
    """
    among, child = set(leaders), pid
    for _ in range(_MOST_ANCESTORS):
        if pid in among:
            return pid, child
        with contextlib.suppress(OSError):
            if (stat := read_stat(pid)) is not None and stat.parent > 0:
                pid, child = stat.parent, pid
                continue
        break
    return None


def program_name(pid: int) -> str:
    """Return a name of process *pid* for people: the script that an interpreter runs, or the program."""
    words: list[str] = []
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    program = PurePath(words[0] if words else "").name
    if program.startswith("python"):
        for word, following in zip(words[1:], [*words[2:], ""], strict=True):
            if word == "-c":
                break
            if word == "-m" or not word.startswith("-"):
                program = following if word == "-m" else PurePath(word).name
                break
    shown = "".join(character if character.isprintable() else "?" for character in program[:_MOST_CHARACTERS])
    return shown or "a program"


def memory_figure(pid: int, place: int) -> int:
    """Return one figure that the system has of a process's memory, in bytes; 0 when it is gone.

    1: all that is in memory; 5: what counts against the limit on private memory.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[place]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
