"""Sessions on one device, under simulated time: the very scheduler that serves notebooks, driven by a heap.

:class:`SimulatedDevice` does to the scheduler what the executor and its sessions do: it reports facts as events and
carries out the actions. Sessions work off *cells*, each a stretch of device time made of iterations of one length; a
grant that is revoked is given back at the next iteration boundary. Boundaries at which nothing happens are jumped over,
so a run costs by turns, not by iterations.

Assumptions, all of them kind to nobody in particular:

- A switch takes no time, and neither does a decision.
- *Interference*: sessions that run at once in several lanes keep their full speed while their utilisations sum to at
  most 1; beyond, all are slowed in proportion to the sum, as if the device were handed round.
- A new session's first iteration needs all of its memory, and what is persistent is born in it; the profile is known
  beforehand, as in Salus, and so are its utilisation, and number and length of its iterations. What is offloaded or
  restored takes its time at a given bandwidth.
- A session that is signalled in the middle of an iteration stops at once, with all of its ephemeral memory live.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sharedkernel.scheduling import MemoryProfile, Scheduler, SchedulerConfig, SessionId, UserId
from sharedkernel.scheduling.model.actions import Action, ForceYield, Grant, Offload, Refuse, Restore, Revoke
from sharedkernel.scheduling.model.events import (
    CellClosed,
    CellOpened,
    DeviceWanted,
    Event,
    GrantReleased,
    MemoryMeasured,
    OffloadDeclined,
    Offloaded,
    ReleasePoint,
    Restored,
    SessionEnded,
    SessionStarted,
    Tick,
)
from sharedkernel.simulator.report import JobRun
from sharedkernel.status.refusal_text import explain_shortage

#: parts of an iteration, and seconds, that do not count: sums of times are not exact
_ROUNDING = 1e-9
#: bytes a second that are copied from and to the host's memory: a PCIe 3 link, measured with pinned memory
_BANDWIDTH = 10e9


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCell:
    """A stretch of work on the device."""

    #: device time that it needs when it runs alone, seconds
    seconds: float
    #: length of each of its iterations, seconds
    iteration: float
    #: seconds from the end of the session's cell before it, or from time 0, until it is sent
    pause: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSession:
    """One session, of a user of its own, and all that it will do."""

    name: str
    cells: Sequence[SimulatedCell]
    #: bytes that it keeps between iterations, from its first one on
    persistent: int = 0
    #: bytes that an iteration needs beyond
    ephemeral: int = 0
    #: bytes that its process holds
    framework: int = 0
    #: how busy it keeps the device when it runs alone, 0 to 1
    utilisation: float = 1.0
    #: whether it ends with its last cell; else it stays, with all that is persistent
    ends: bool = True

    @property
    def peak(self) -> int:
        """Bytes at the peak of an iteration, without what its process holds."""
        return self.persistent + self.ephemeral


@dataclass(slots=True, kw_only=True, eq=False)
class CellRun(JobRun):
    """The outcome of one cell, which came when it was sent."""

    #: when it was first granted the device; infinite: it was not
    granted: float = math.inf
    #: why it was refused; empty: it was not
    refused: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class _Actor:
    """A session at work."""

    session: SimulatedSession
    id: SessionId
    profile: MemoryProfile
    #: number of its next cell
    next: int = 0
    #: of its present cell
    run: CellRun = field(init=False)
    #: device time that its present cell has had, at full speed, seconds
    done: float = 0.0
    #: iterations of it that were reported
    reported: int = 0
    #: since when it runs, or when it did last
    since: float = 0.0
    is_revoked: bool = False
    #: whether its memory is as it will be: its first iteration is over
    is_settled: bool = False
    #: whether its memory is being moved away
    is_leaving: bool = False
    #: bytes that are moved away
    offloaded: int = 0
    #: counts changes of plan, so that what was planned before one is not done
    turn: int = 0

    @property
    def cell(self) -> SimulatedCell:
        return self.session.cells[self.next]

    @property
    def iterations(self) -> int:
        """Iterations of the present cell that are over."""
        return math.floor(self.done / self.cell.iteration + _ROUNDING)


class SimulatedDevice:
    """Runs sessions against a scheduler.

    Parameters
    ----------
    config
        The scheduler's.
    sessions
        All that will ever come.
    bandwidth
        Bytes a second at which memory is offloaded and restored.
    on_progress
        Told how many cells are over whenever one is.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        sessions: Iterable[SimulatedSession],
        *,
        bandwidth: float = _BANDWIDTH,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.now = 0.0
        #: what became of each cell, in the order in which they were sent
        self.runs: list[CellRun] = []
        #: events the scheduler was told
        self.num_events = 0
        #: iterations that were run
        self.num_iterations = 0
        #: times that a session's memory was moved away
        self.num_offloads = 0
        self._bandwidth = bandwidth
        self._on_progress = on_progress
        self._over = 0
        self._speed = 1.0
        self._plan: list[tuple[float, int, _Actor, int, Callable[[_Actor], None]]] = []
        self._numbers = itertools.count()
        self._actors: dict[SessionId, _Actor] = {}
        self._running: dict[SessionId, _Actor] = {}
        for session in sessions:
            actor = _Actor(
                session=session,
                id=SessionId(session.name),
                profile=MemoryProfile(ephemeral=session.peak, framework=session.framework),
            )
            self._actors[actor.id] = actor
            if session.cells:
                self._at(session.cells[0].pause, actor, self._arrive)

    def run(self, until: float = math.inf) -> list[CellRun]:
        """Let time pass until nothing is left to be done, or until *until*; return what became of the cells."""
        while True:
            while self._plan and self._plan[0][3] != self._plan[0][2].turn:
                heapq.heappop(self._plan)
            planned = self._plan[0][0] if self._plan else math.inf
            deadline = self.scheduler.next_deadline()
            moment = planned if deadline is None else min(planned, deadline)
            if moment == math.inf or moment > until:
                break
            self._pass_time(max(self.now, moment))
            if planned <= self.now:
                _, _, actor, _, what = heapq.heappop(self._plan)
                what(actor)
            else:
                self._tell(Tick())
        if until < math.inf:
            self._pass_time(until)
            self._tell(Tick())
        return self.runs

    # --- time -----------------------------------

    def _at(self, when: float, actor: _Actor, what: Callable[[_Actor], None]) -> None:
        heapq.heappush(self._plan, (when, next(self._numbers), actor, actor.turn, what))

    def _replan(self, when: float, actor: _Actor, what: Callable[[_Actor], None]) -> None:
        """Plan *what* instead of whatever was planned for *actor*."""
        actor.turn += 1
        self._at(when, actor, what)

    def _pass_time(self, until: float) -> None:
        elapsed = until - self.now
        if elapsed > 0:
            for actor in self._running.values():
                actor.done += elapsed * self._speed
        self.now = until

    # --- what sessions do -----------------------------------

    def _arrive(self, actor: _Actor) -> None:
        user, framework = UserId(actor.session.name), actor.session.framework
        self._tell(SessionStarted(session=actor.id, user=user, domain="all", framework=framework))
        self._send(actor)

    def _send(self, actor: _Actor) -> None:
        if actor.is_leaving:
            actor.is_leaving = False
            self._tell(OffloadDeclined(session=actor.id, for_now=True))
        actor.turn += 1
        actor.done, actor.reported = 0.0, 0
        actor.run = CellRun(came=self.now, duration=actor.cell.seconds)
        self.runs.append(actor.run)
        self._tell(CellOpened(session=actor.id))
        if not actor.offloaded:
            self._want(actor)

    def _want(self, actor: _Actor) -> None:
        left = math.ceil((actor.cell.seconds - actor.done) / actor.cell.iteration - _ROUNDING)
        self._tell(
            DeviceWanted(
                session=actor.id,
                memory=actor.profile,
                remaining_iterations=left,
                iteration_seconds=actor.cell.iteration,
                utilisation=actor.session.utilisation,
            )
        )

    def _boundary(self, actor: _Actor) -> None:
        """Come to an iteration boundary at which there is something to do."""
        self._settle(actor)
        if actor.done >= actor.cell.seconds - _ROUNDING:
            self._release(actor, "cell")
            self._close(actor)
        elif actor.is_revoked:
            self._release(actor, "boundary")
            self._want(actor)
        else:
            self._plan_boundary(actor)
            self._tell(MemoryMeasured(session=actor.id, memory=actor.profile))

    def _settle(self, actor: _Actor) -> None:
        """Let what was born in the first iteration be persistent from now on."""
        session = actor.session
        actor.is_settled = True
        actor.profile = MemoryProfile(
            persistent=session.persistent, ephemeral=session.ephemeral, framework=session.framework
        )

    def _yield(self, actor: _Actor) -> None:
        """Stop in the middle of an iteration."""
        self._release(actor, "yield", live=actor.profile.ephemeral or 0)
        self._want(actor)

    def _release(self, actor: _Actor, at: ReleasePoint, *, live: int = 0) -> None:
        actor.run.stretches.append((actor.since, self.now))
        del self._running[actor.id]
        actor.turn += 1
        self._set_speed()
        iterations = max(actor.iterations, 1) if at == "cell" else actor.iterations
        fresh, actor.reported = iterations - actor.reported, iterations
        self.num_iterations += fresh
        self._tell(
            GrantReleased(
                session=actor.id,
                at=at,
                memory=actor.profile,
                live_bytes=live,
                iterations=fresh,
                utilisation=actor.session.utilisation,
            )
        )

    def _close(self, actor: _Actor) -> None:
        if not actor.run.refused:
            actor.run.ended = self.now
        actor.next += 1
        actor.turn += 1
        was_leaving, actor.is_leaving = actor.is_leaving, False
        self._tell(CellClosed(session=actor.id, memory=actor.profile))
        if was_leaving:
            self._tell(OffloadDeclined(session=actor.id, for_now=True))
        self._over += 1
        self._on_progress(self._over)
        if actor.next < len(actor.session.cells):
            self._at(self.now + actor.cell.pause, actor, self._send)
        elif actor.session.ends:
            actor.turn += 1
            self._tell(SessionEnded(session=actor.id))

    def _offloaded(self, actor: _Actor) -> None:
        self.num_offloads += 1
        actor.is_leaving = False
        actor.offloaded, actor.profile = actor.profile.persistent, replace(actor.profile, persistent=0)
        self._tell(Offloaded(session=actor.id, memory=actor.profile, offloaded=actor.offloaded))

    def _restored(self, actor: _Actor) -> None:
        self._settle(actor)
        actor.offloaded = 0
        self._tell(Restored(session=actor.id, memory=actor.profile))
        self._want(actor)

    # --- what the scheduler says -----------------------------------

    def _tell(self, event: Event) -> None:
        self.num_events += 1
        for action in self.scheduler.handle(event, now=self.now):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Grant(session=session):
                self._grant(self._actors[session])
            case Revoke(session=session):
                actor = self._actors[session]
                actor.is_revoked = True
                actor.run.preemptions += 1
                self._plan_boundary(actor)
            case ForceYield(session=session):
                # A signal is not the scheduler's answer: what it leads to happens after that is carried out.
                self._replan(self.now, self._actors[session], self._yield)
            case Refuse(session=session, shortage=shortage):
                self._replan(self.now, self._actors[session], self._close)
                self._actors[session].run.refused = explain_shortage(shortage)
            case Offload(session=session):
                self._actors[session].is_leaving = True
                self._copy(self._actors[session], self._actors[session].profile.persistent, self._offloaded)
            case Restore(session=session):
                self._copy(self._actors[session], self._actors[session].offloaded, self._restored)
            case _:
                pass  # lanes are the scheduler's own here

    def _grant(self, actor: _Actor) -> None:
        actor.run.granted = min(actor.run.granted, self.now)
        actor.is_revoked = False
        actor.since = self.now
        self._running[actor.id] = actor
        self._plan_boundary(actor)
        self._set_speed()

    def _copy(self, actor: _Actor, amount: int, then: Callable[[_Actor], None]) -> None:
        # Beside whatever else is planned: a cell that is sent while its session is being offloaded ends that.
        self._at(self.now + amount / self._bandwidth, actor, then)

    # --- speed -----------------------------------

    def _set_speed(self) -> None:
        # full while the utilisations of those that run sum to at most 1
        speed = 1.0 / max(1.0, sum(actor.session.utilisation for actor in self._running.values()))
        if speed != self._speed:
            self._speed = speed
            for actor in self._running.values():
                self._plan_boundary(actor)

    def _plan_boundary(self, actor: _Actor) -> None:
        """Plan the next boundary at which *actor* has something to do."""
        cell = actor.cell
        target = cell.seconds
        if actor.is_revoked or not actor.is_settled:
            target = min(target, (actor.iterations + 1) * cell.iteration)
        self._replan(self.now + max(0.0, target - actor.done) / self._speed, actor, self._boundary)
