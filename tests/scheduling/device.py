"""A pretended device: notebooks with cells of iterations, driven by the scheduler in its own time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling import SchedulerConfig, SessionId
from sharedkernel.scheduling.model.actions import Action, ForceYield, Grant, Offload, Refuse, Restore, Revoke, Summon
from sharedkernel.scheduling.model.events import CellOpened
from sharedkernel.status.refusal_text import explain_shortage
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
    #: what its first iteration comes to need more, half-way
    growth: int = 0
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
    #: whether it keeps its memory when it is asked to offload
    declines: bool = False
    #: what it keeps from the start, and what it holds as long as it lives
    persistent: int = 0
    framework: int = 0
    #: bytes of an interrupted iteration that were moved out and back, and count as persistent until its boundary
    carried: int = 0
    #: since when its memory is wanted back, and how long it was each time until it was there
    away_since: float | None = None
    memory_waits: list[float] = field(default_factory=list)
    done_iterations: int = 0
    #: device time left in the present iteration
    left: float = 0.0
    running_since: float | None = None
    is_revoked: bool = False
    reported: int = 0
    wanted_at: float = 0.0
    #: for each cell, from wanting the device first to having it
    waits: list[float] = field(default_factory=list)
    is_open: bool = False
    #: ends the plain Python before its cell's first iteration, and whether that is over
    begin: Callable[[], None] | None = None
    has_come: bool = False
    #: whether the present cell has what it needs more
    has_grown: bool = False
    #: how often it was offloaded, and how often in the middle of a cell
    num_offloads: int = 0
    num_cut_short: int = 0
    num_resumed: int = 0
    #: why its cells were refused something
    refusals: list[Refuse] = field(default_factory=list)
    #: counts grants, so that what was planned under an older one is not done
    turn: int = 0


#: seconds that moving memory away, or back, takes
MOVING = 0.02


class Device:
    """Runs notebooks against a scheduler until a time or until all are done.

    A notebook that is refused something ends there, unless *may_refuse* is False: then it is a mistake.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        notebooks: list[Notebook],
        *,
        is_measured: bool = True,
        may_refuse: bool = False,
        offload_after: float | None = 30.0,
        shares: Mapping[str, float] | None = None,
        moving: Callable[[int], float] = lambda size: MOVING,
    ) -> None:
        self._moving = moving
        self.desk = Desk(config)
        self.notebooks = {notebook.name: notebook for notebook in notebooks}
        self.is_measured = is_measured
        self.may_refuse = may_refuse
        self.num_switches = 0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for notebook in notebooks:
            self.desk.start(notebook.name, domain=notebook.domain, framework=notebook.framework)
            user = notebook.name.rstrip("0123456789")
            self.desk.user(user, offload_after=offload_after, share=(shares or {}).get(user, 1.0))
            if notebook.persistent:
                self.desk.measure(notebook.name, persistent=notebook.persistent, ephemeral=notebook.cells[0].ephemeral)
                self.desk.offload(notebook.name)  # so that they may be more than the device holds
            self._next_cell(notebook)

    @property
    def is_done(self) -> bool:
        return not any(notebook.cells for notebook in self.notebooks.values())

    def switch(self, policy: str) -> None:
        """Let another policy rank from now on."""
        self._do(self.desk.policy(policy))

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
                self._do(self.desk.tick())
                return
            self.desk.now = max(self.desk.now, min(times))
            if planned is not None and planned <= self.desk.now:
                heapq.heappop(self._plan)[2]()
            else:
                self._do(self.desk.tick())

    def _at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (self.desk.now + delay, next(self._numbers), what))

    def _next_cell(self, notebook: Notebook) -> None:
        def opened() -> None:
            notebook.is_open = True
            is_away = self.desk.state(notebook.name) == "offloaded"
            if is_away:
                notebook.away_since = self.desk.now
            self._do(self.desk.send(CellOpened(session=SessionId(notebook.name))))
            if not is_away:
                self._begin(notebook)

        self._at(notebook.cells[0].pause, opened)

    def _begin(self, notebook: Notebook) -> None:
        cell = notebook.cells[0]

        notebook.has_come = False

        def wanted() -> None:
            if notebook.has_come:
                return
            notebook.has_come = True
            notebook.done_iterations = notebook.reported = 0
            notebook.left = cell.seconds
            notebook.has_grown = not cell.growth
            notebook.wanted_at = self.desk.now
            notebook.waits.append(float("nan"))
            self._want(notebook)

        notebook.begin = wanted
        self._at(cell.prelude, wanted)

    def _want(self, notebook: Notebook, growth: int = 0) -> None:
        ephemeral = notebook.cells[0].ephemeral if self.is_measured else None
        self._do(self.desk.want(notebook.name, ephemeral, growth=growth))

    def _on_summon(self, notebook: Notebook) -> None:
        """Let its plain Python be interrupted; what it would have done first, it does then."""
        begun = notebook.begin
        if notebook.yields and begun is not None:
            self._at(0.0, begun)

    def _on_offload(self, notebook: Notebook) -> None:
        def answered() -> None:
            is_waiting = self.desk.state(notebook.name) == "waiting"
            if (notebook.is_open and not is_waiting) or notebook.declines:
                self._do(self.desk.decline(notebook.name))
            else:
                notebook.num_cut_short += is_waiting
                notebook.num_offloads += 1
                if is_waiting:
                    notebook.away_since = self.desk.now
                    notebook.carried += self.desk.session(notebook.name).iteration.live
                self._do(self.desk.offload(notebook.name))

        view = self.desk.session(notebook.name)
        self._at(self._moving(view.memory.persistent + view.iteration.live), answered)

    def _on_restore(self, notebook: Notebook) -> None:
        def restored() -> None:
            is_in_cell = notebook.num_cut_short > notebook.num_resumed
            assert notebook.away_since is not None
            notebook.memory_waits.append(self.desk.now - notebook.away_since)
            notebook.away_since = None
            self._do(self.desk.restored(notebook.name))
            if is_in_cell:
                notebook.num_resumed += 1
                self._want(notebook)
            else:
                self._begin(notebook)

        self._at(self._moving(self.desk.session(notebook.name).offload.size), restored)

    def _on_refuse(self, notebook: Notebook, refusal: Refuse) -> None:
        assert self.may_refuse, explain_shortage(refusal.shortage)
        notebook.refusals.append(refusal)
        self._at(0.0, lambda: self._close(notebook, is_refused=True))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Grant(session=session):
                    self._on_grant(self.notebooks[session])
                case Revoke(session=session):
                    self.notebooks[session].is_revoked = True
                case ForceYield(session=session) if self.notebooks[session].yields:
                    self._at(0.0, lambda notebook=self.notebooks[session]: self._yield(notebook))
                case Summon(session=session):
                    self._on_summon(self.notebooks[session])
                case Offload(session=session):
                    self._on_offload(self.notebooks[session])
                case Restore(session=session):
                    self._on_restore(self.notebooks[session])
                case Refuse(session=session):
                    self._on_refuse(self.notebooks[session], action)

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
        half = notebook.cells[0].seconds / 2
        if not notebook.has_grown and notebook.left >= half:
            self._at(notebook.left - half, lambda: self._grow(notebook) if turn == notebook.turn else None)
        else:
            self._at(notebook.left, lambda: self._boundary(notebook) if turn == notebook.turn else None)

    def _grow(self, notebook: Notebook) -> None:
        """Interrupt the iteration at its half, and go on once there is more memory."""
        cell = notebook.cells[0]
        notebook.left = cell.seconds / 2
        notebook.has_grown = True
        self._release(notebook, "yield", live=max(0, cell.ephemeral - notebook.carried))
        self._want(notebook, cell.growth)

    def _boundary(self, notebook: Notebook) -> None:
        cell = notebook.cells[0]
        notebook.done_iterations += 1
        self.desk.profile(notebook.name, persistent=self.desk.profile(notebook.name).persistent - notebook.carried)
        notebook.carried = 0
        notebook.left = cell.seconds
        notebook.running_since = self.desk.now
        if notebook.done_iterations >= cell.iterations:
            self._release(notebook, "cell", persistent=cell.persistent)
            self._close(notebook)
        elif notebook.is_revoked and notebook.has_boundaries:
            self._release(notebook, "boundary", persistent=cell.persistent if cell.growth else None)
            self._want(notebook)
        else:
            self._plan_boundary(notebook)

    def _close(self, notebook: Notebook, *, is_refused: bool = False) -> None:
        cell = notebook.cells.pop(0)
        notebook.is_open = False
        self._do(self.desk.close(notebook.name, persistent=None if is_refused else cell.persistent))
        if is_refused:
            notebook.cells.clear()
        if notebook.cells:
            self._next_cell(notebook)

    def _yield(self, notebook: Notebook) -> None:
        if notebook.running_since is None:
            return
        notebook.left = max(0.0, notebook.left - (self.desk.now - notebook.running_since))
        cell = notebook.cells[0]
        grown = cell.growth if notebook.has_grown and not notebook.done_iterations else 0
        self._release(notebook, "yield", live=max(0, cell.ephemeral // 2 + grown - notebook.carried))
        self._want(notebook)

    def _release(self, notebook: Notebook, at: str, *, live: int = 0, persistent: int | None = None) -> None:
        notebook.running_since = None
        notebook.turn += 1
        iterations = notebook.done_iterations - notebook.reported
        notebook.reported = notebook.done_iterations
        ephemeral = notebook.cells[0].ephemeral if iterations or self.is_measured else None
        actions = self.desk.release(
            notebook.name,
            at,  # type: ignore[arg-type]
            live=live,
            iterations=iterations,
            ephemeral=ephemeral,
            persistent=persistent,
        )
        self._do(actions)


def run(
    notebooks: list[Notebook], *, until: float = 1e9, offload_after: float | None = 30.0, **config: object
) -> Device:
    """Run *notebooks* on a device of 1000 bytes, or as configured."""
    values = {"capacity": 1000, **config}
    device = Device(SchedulerConfig(**values), notebooks, offload_after=offload_after)  # type: ignore[arg-type]
    device.run(until)
    return device


def endless(name: str, seconds: float, **more: object) -> Notebook:
    """Return a notebook that trains for ever in one cell."""
    cell_keys = {key: more.pop(key) for key in ("ephemeral", "prelude", "pause") if key in more}
    return Notebook(name=name, cells=[Cell(iterations=10**9, seconds=seconds, **cell_keys)], **more)  # type: ignore[arg-type]
