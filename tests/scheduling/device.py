"""A pretended device: notebooks with cells of iterations, driven by the scheduler in its own time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from sharedkernel.scheduling import SchedulerConfig, SessionId
from sharedkernel.scheduling.actions import Action, ForceYield, Grant, Refuse, Revoke
from sharedkernel.scheduling.events import CellOpened
from tests.scheduling.desk import Desk


@dataclass(kw_only=True)
class Cell:
    """Some iterations, one after the other."""

    iterations: int = 1
    #: device time of each
    seconds: float
    ephemeral: int = 10
    #: what the session keeps when the cell is done
    persistent: int = 0
    #: plain Python before the first iteration, after the pause
    prelude: float = 0.0
    #: time until the cell is sent, after the one before is done
    pause: float = 0.0


@dataclass(kw_only=True, eq=False)
class Notebook:
    """A session that works off its cells."""

    name: str
    cells: list[Cell]
    domain: str = "all"
    #: whether it ever comes to a boundary inside a cell
    has_boundaries: bool = True
    #: whether it answers signals
    yields: bool = True
    done_iterations: int = 0
    #: device time left in the present iteration
    left: float = 0.0
    running_since: float | None = None
    is_revoked: bool = False
    reported: int = 0
    wanted_at: float = 0.0
    #: for each cell, from wanting the device first to having it
    waits: list[float] = field(default_factory=list)
    #: counts grants, so that what was planned under an older one is not done
    turn: int = 0


class Device:
    """Runs notebooks against a scheduler until a time or until all are done."""

    def __init__(self, config: SchedulerConfig, notebooks: list[Notebook], *, is_measured: bool = True) -> None:
        self.desk = Desk(config)
        self.notebooks = {notebook.name: notebook for notebook in notebooks}
        self.is_measured = is_measured
        self.num_switches = 0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for notebook in notebooks:
            self.desk.start(notebook.name, domain=notebook.domain)
            self._next_cell(notebook)

    @property
    def is_done(self) -> bool:
        return not any(notebook.cells for notebook in self.notebooks.values())

    def run(self, until: float = 1e9, *, most_events: int = 200_000) -> None:
        """Let time pass until *until*, or until all cells are done."""
        while not self.is_done:
            assert len(self.desk.log) < most_events, "it does not come to an end"
            deadline = self.desk.scheduler.next_deadline()
            planned = self._plan[0][0] if self._plan else None
            times = [time for time in (deadline, planned) if time is not None]
            assert times, f"nothing will ever happen again: {self.desk.scheduler.snapshot(self.desk.now)}"
            if min(times) > until:
                self.desk.now = until
                self.desk.tick()
                return
            self.desk.now = max(self.desk.now, min(times))
            if planned is not None and planned <= self.desk.now:
                heapq.heappop(self._plan)[2]()
            else:
                self._do(self.desk.tick())

    def _at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (self.desk.now + delay, next(self._numbers), what))

    def _next_cell(self, notebook: Notebook) -> None:
        cell = notebook.cells[0]

        def opened() -> None:
            self._do(self.desk.send(CellOpened(session=SessionId(notebook.name))))
            self._at(cell.prelude, wanted)

        def wanted() -> None:
            notebook.done_iterations = notebook.reported = 0
            notebook.left = cell.seconds
            notebook.wanted_at = self.desk.now
            notebook.waits.append(float("nan"))
            self._want(notebook)

        self._at(cell.pause, opened)

    def _want(self, notebook: Notebook) -> None:
        ephemeral = notebook.cells[0].ephemeral if self.is_measured else None
        self._do(self.desk.want(notebook.name, ephemeral))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Grant(session=session):
                    self._on_grant(self.notebooks[session])
                case Revoke(session=session):
                    self.notebooks[session].is_revoked = True
                case ForceYield(session=session) if self.notebooks[session].yields:
                    self._at(0.0, lambda notebook=self.notebooks[session]: self._yield(notebook))
                case Refuse(message=message):
                    raise AssertionError(message)

    def _on_grant(self, notebook: Notebook) -> None:
        self.num_switches += 1
        if notebook.waits[-1] != notebook.waits[-1]:
            notebook.waits[-1] = self.desk.now - notebook.wanted_at
        notebook.is_revoked = False
        notebook.running_since = self.desk.now
        notebook.turn += 1
        self._plan_boundary(notebook)

    def _plan_boundary(self, notebook: Notebook) -> None:
        turn = notebook.turn
        self._at(notebook.left, lambda: self._boundary(notebook) if turn == notebook.turn else None)

    def _boundary(self, notebook: Notebook) -> None:
        cell = notebook.cells[0]
        notebook.done_iterations += 1
        notebook.left = cell.seconds
        notebook.running_since = self.desk.now
        if notebook.done_iterations >= cell.iterations:
            self._release(notebook, "cell")
            self._do(self.desk.close(notebook.name, persistent=cell.persistent))
            del notebook.cells[0]
            if notebook.cells:
                self._next_cell(notebook)
        elif notebook.is_revoked and notebook.has_boundaries:
            self._release(notebook, "boundary")
            self._want(notebook)
        else:
            self._plan_boundary(notebook)

    def _yield(self, notebook: Notebook) -> None:
        if notebook.running_since is None:
            return
        notebook.left = max(0.0, notebook.left - (self.desk.now - notebook.running_since))
        self._release(notebook, "yield", live=notebook.cells[0].ephemeral // 2)
        self._want(notebook)

    def _release(self, notebook: Notebook, at: str, *, live: int = 0) -> None:
        notebook.running_since = None
        notebook.turn += 1
        iterations = notebook.done_iterations - notebook.reported
        notebook.reported = notebook.done_iterations
        ephemeral = notebook.cells[0].ephemeral if iterations or self.is_measured else None
        actions = self.desk.release(notebook.name, at, live=live, iterations=iterations, ephemeral=ephemeral)  # type: ignore[arg-type]
        self._do(actions)


def run(notebooks: list[Notebook], *, until: float = 1e9, **config: object) -> Device:
    """Run *notebooks* on a device of 1000 bytes, or as configured."""
    device = Device(SchedulerConfig(**{"capacity": 1000, **config}), notebooks)  # type: ignore[arg-type]
    device.run(until)
    return device


def endless(name: str, seconds: float, **more: object) -> Notebook:
    """Return a notebook that trains for ever in one cell."""
    cell_keys = {key: more.pop(key) for key in ("ephemeral", "prelude", "pause") if key in more}
    return Notebook(name=name, cells=[Cell(iterations=10**9, seconds=seconds, **cell_keys)], **more)  # type: ignore[arg-type]
