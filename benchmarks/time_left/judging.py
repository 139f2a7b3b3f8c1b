"""What people were told of the time that cells had left, found by replaying what the scheduling core was told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.scheduling import Scheduler, SchedulerConfig, SessionId, SessionView
from sharedkernel.scheduling.model import events
from sharedkernel.status.text import about

Log = list[tuple[float, events.Event]]
#: from a cell's user and source, what to call it
Naming = Callable[[str, str], str]
#: parts of a cell's way at which it is looked at
PARTS = (0.25, 0.5, 0.75)
#: a kind of cells whose end nothing tells, and the totals without it
UNFORESEEN = "stopped early"
#: by what part a figure may be wrong
_NEAR = 0.3
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of one cell at one part of its way; seconds, None: nothing."""

    name: str
    part: float
    left: float
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class _Cell:
    name: str
    session: SessionId
    opened: float
    closed: float


def judge(log: Log, config: SchedulerConfig, name: Naming, least: float) -> list[Told]:
    """Return what was told of the cells in *log* that were open for at least *least* seconds.

    Parameters
    ----------
    log
        Events with their times, of one scheduler.
    config
        The scheduler's.
    name
        Returns what to call a cell, by its user and source; empty: it does not count.
    least
        Seconds.
    """
    cells = _cells(log, name, least)
    looks = [(cell.opened + part * (cell.closed - cell.opened), part, cell) for cell in cells for part in PARTS]
    looks.sort(key=lambda look: look[0])
    scheduler, told = Scheduler(config), []
    upcoming = iter(looks)
    look = next(upcoming, None)
    for now, event in log:
        while look is not None and look[0] < now:
            moment, part, cell = look
            view = next(view for view in scheduler.snapshot(moment).sessions if view.id == cell.session)
            told.append(Told(cell.name, part, cell.closed - moment, _before(view), view.time_left_seconds))
            look = next(upcoming, None)
        scheduler.handle(event, now=now)
    return told


def _before(view: SessionView) -> float | None:
    """Return what was shown until 2026-11: the device time that is left, unless that was a mere guess."""
    return view.remaining_seconds if view.remaining_from != "residual" else None


def _cells(log: Log, name: Naming, least: float) -> Iterable[_Cell]:
    users: dict[SessionId, str] = {}
    opened: dict[SessionId, tuple[float, str]] = {}
    for now, event in log:
        if isinstance(event, events.SessionStarted):
            users[event.session] = event.user
        elif isinstance(event, events.CellOpened):
            opened[event.session] = now, name(users[event.session], event.source or "")
        elif isinstance(event, events.CellClosed) and event.session in opened:
            since, called = opened.pop(event.session)
            if called and now - since >= least:
                yield _Cell(called, event.session, since, now)


def table(told: list[Told]) -> str:
    """Return how often something was told, and how often that was near, by kind of cell and by part of the way."""
    groups: defaultdict[str, list[Told]] = defaultdict(list)
    for one in told:
        groups[one.name].append(one)
    rows = sorted(groups.items())
    totals = {"all": told}
    if UNFORESEEN in groups:
        totals[f"all but {UNFORESEEN}"] = [one for one in told if one.name != UNFORESEEN]
    for title, ones in totals.items():
        rows += [(f"{title}, at {part:.0%}", [one for one in ones if one.part == part]) for part in PARTS]
        rows.append((title, ones))
    lines = [f"{'':34}{'looks':>6}{'before: shown':>15}{'near':>6}{'now: shown':>12}{'near':>6}"]
    for title, ones in rows:
        figures = "".join(
            f"{_percent(len(shown), len(ones)):>{width}}{_percent(sum(shown), len(shown)):>6}"
            for width, shown in (
                (15, [_is_near(one.before, one.left) for one in ones if one.before is not None]),
                (12, [_is_near(one.after, one.left) for one in ones if one.after is not None]),
            )
        )
        lines.append(f"{title:34}{len(ones):6}{figures}")
    return "\n".join(lines)


def _is_near(said: float, left: float) -> bool:
    """Return whether *said*, as it is shown, is near what was *left*."""
    amount, unit = about(said).removeprefix("~").split()
    return abs(int(amount) * _UNITS[unit] - left) <= _NEAR * left


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
