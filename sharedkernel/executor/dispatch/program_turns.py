"""Turns of programs that sessions started and that compute on a GPU: each has one turn together with its session.

A program passes no gate, and its cell usually waits for its end. This module asks for its turns: it stands between the
sessions' reports and the core's events, and between the core's actions and the sessions. While programs of a session
compute, the core sees one open cell that wants the device. The session and its programs share its grant, and the core
gets it back when both have released it. Outside their turns the programs are stopped.

- A program takes turns from when it is first seen to compute until it ran for :data:`_IDLE` seconds and did not.
- A turn lasts :data:`_LEAST_TURN` seconds at least: until then nobody is asked to give it back.
- No stop lasts longer than :data:`_LONGEST_STOP`, for the sake of what waits at the other end of a connection. The
  program then runs for a moment without a grant, which is charged.
- What cannot be recorded on disk is not stopped (`processes/programs.py`).

Meanwhile the session's own memory stays on the device, since its program may be about to pass tensors to it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sharedkernel.errors import Refused
from sharedkernel.executor.dispatch.driver import Actions, Effects
from sharedkernel.executor.processes.process import SessionHandle, id_of, profile_of
from sharedkernel.executor.processes.process_tree import all_children, tree
from sharedkernel.executor.processes.programs import Program, StoppedPrograms, send_all, start_times
from sharedkernel.paths import make_private_directory
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.model.types import HOLDING_STATES, MemoryProfile, SessionId, SessionState
from sharedkernel.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

_LEAST_TURN = 0.2
_LONGEST_STOP = 30.0
_IDLE = 2.0
#: seconds for which interrupted programs run, to end if that is what they do
_INTERRUPTED = 2.0
#: seconds in which programs may end that are asked to, and between two looks whether they have
_ENDING, _LOOK = 5.0, 0.05
#: seconds for which programs are left alone that were refused the device, or could not be stopped
_REFUSED = 30.0
_ASKING_STATES = (SessionState.WAITING, SessionState.QUEUED)
_AWAY_STATES = (SessionState.OFFLOADED, SessionState.RESTORING)


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    """A session whose programs take turns with it."""

    process: SessionHandle
    id: SessionId
    #: for how many seconds each program ran since it last computed, by its root
    idle: dict[int, float]
    #: of the session itself: whether its cell is open, it waits for the device, it holds the device
    has_cell: bool
    wants: bool
    holds: bool
    #: its want, which waits for the end of the present turn
    deferred: events.DeviceWanted | None = None
    #: how it released what its programs hold still
    released: events.GrantReleased | None = None
    #: when the present turn began, and since when its programs run (None: they are stopped), on the loop's axis
    began: float = 0.0
    runs_since: float | None = None
    #: seconds that they ran since the last look
    ran: float = 0.0
    #: ids of their processes on the device
    pids: set[int] = field(default_factory=set)
    #: until when they run whatever the core decides
    free_until: float = 0.0
    timer: asyncio.TimerHandle | None = None


class ProgramTurns:
    """Filters the events of sessions whose programs compute, and the actions that concern them.

    Parameters
    ----------
    scheduler
        Whose state is read.
    inner
        Carries out what is decided for sessions themselves.
    handle
        Takes events to the core, which may carry out actions before it returns.
    directory
        Has the records of what is stopped.
    """

    def __init__(
        self, scheduler: Scheduler, inner: Actions, handle: Callable[[events.Event], None], directory: Path
    ) -> None:
        self._scheduler = scheduler
        self._inner = inner
        self._to_core = handle
        self._directory = directory
        self._turns: dict[str, _Turn] = {}
        #: until when programs of which sessions are left alone, by process
        self._refused: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    # --- what is seen -------------------------------------------------------------------------------------------------

    def look(self, process: SessionHandle, programs: Sequence[Program]) -> None:
        """Update which programs of a session use the device; *programs* are all of them."""
        process.programs = tuple(programs)
        eligible = {program.root: program for program in programs if program.exempt is None}
        busy = [program.root for program in eligible.values() if program.busy > 0]
        turn = self._turns.get(process.session or "")
        if turn is None:
            if busy:
                self._begin(process, eligible, busy)
            return
        ran, before = self._take_ran(turn), turn.idle
        since = {root: idle + ran for root, idle in before.items() if root in eligible}
        turn.idle = {root: idle for root, idle in since.items() if idle <= _IDLE} | dict.fromkeys(busy, 0.0)
        turn.pids = {pid for root in turn.idle for pid in eligible[root].pids}
        if not turn.idle:
            self._end(turn)
            return
        if before.keys() - turn.idle.keys():
            self._run(turn)
        self._settle(turn)  # another process of theirs may have come to the device

    def _begin(self, process: SessionHandle, eligible: Mapping[int, Program], busy: Sequence[int]) -> None:
        now, session = self._loop.time(), self._scheduler.sessions[id_of(process)]
        state = session.state
        if process.end_asked or process.grant.is_unsanctioned or now < self._refused.get(process.process, 0.0):
            return
        if state in _AWAY_STATES or session.offload.is_asked:  # it is back before its next cell, or stays away
            return
        if process.stopped is None:
            make_private_directory(self._directory)
            process.stopped = StoppedPrograms(self._directory / process.process)
        turn = self._turns[process.session or ""] = _Turn(
            process=process,
            id=id_of(process),
            idle=dict.fromkeys(busy, 0.0),
            has_cell=state is not SessionState.IDLE,
            wants=state in _ASKING_STATES,
            holds=state in HOLDING_STATES,
            began=now,
            runs_since=now,
            pids={pid for root in busy for pid in eligible[root].pids},
        )
        log.info("%s of session %s take turns with it", ", ".join(eligible[root].name for root in busy), turn.id)
        if state is SessionState.IDLE:
            self._to_core(events.CellOpened(session=turn.id))
        if not turn.wants and not turn.holds:
            self._want(turn)
        self._settle(turn)

    def _give_up(self, turn: _Turn) -> None:
        if self._turns.get(turn.id) is turn:
            self._end(turn)

    def _end(self, turn: _Turn) -> None:
        """Let the programs be, and leave the session what it has of its own."""
        log.info("no program of session %s takes turns with it any more", turn.id)
        self.forget(turn.process)
        if turn.deferred is not None:
            self._leave(turn)
            self._to_core(turn.deferred)
        elif not turn.holds and not turn.wants:
            self._leave(turn)
        if not turn.has_cell and self._state(turn) is SessionState.READY:
            self._to_core(events.CellClosed(session=turn.id, memory=profile_of(turn.process.memory)))

    def forget(self, process: SessionHandle) -> None:
        """Let the programs of a session run, whose state the core is told anew."""
        turn = self._turns.pop(process.session or "", None)
        if turn is not None:
            self._run(turn)
            self._cancel(turn)

    def interrupt(self, process: SessionHandle, seconds: float = _INTERRUPTED) -> None:
        """Let a session's stopped programs run for some *seconds*, in which they may react to a signal."""
        turn = self._turns.get(process.session or "")
        if turn is not None and turn.runs_since is None:
            self._run_for(turn, seconds)

    async def end(self, process: SessionHandle) -> None:
        """End the programs of a session that use the device: SIGTERM, and SIGKILL for what that leaves.

        Raises
        ------
        Refused
            When there are none.
        """
        roots = [program.root for program in process.programs]
        left = start_times(tree(roots, all_children()) - {process.pid}, process.uid) if roots else {}
        if not left:
            raise Refused("no program of this notebook uses the device now.", reason="no_programs")
        self.interrupt(process, _ENDING)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            send_all(left, signum)
            until = self._loop.time() + _ENDING
            while left and self._loop.time() < until:
                await asyncio.sleep(_LOOK)
                left = {pid: when for pid, when in start_times(left, process.uid).items() if left[pid] == when}

    def close(self) -> None:
        """Let all programs run."""
        for turn in list(self._turns.values()):
            self.forget(turn.process)

    # --- from sessions to the core ------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Take an event to the core, as what it means for a session together with its programs.

        Raises
        ------
        InvalidTransition
            As the core does.
        """
        turn = self._turns.get(event.session) if isinstance(event, events.SessionEvent) else None
        if turn is None:
            self._to_core(event)
            return
        match event:
            case events.CellOpened():
                turn.has_cell = True
            case events.CellClosed():
                turn.has_cell = False
                self._to_core(events.MemoryMeasured(session=turn.id, memory=self._profile(turn)))
                if turn.wants:
                    self._withdraw(turn)
            case events.HolderIdle():  # its programs are not
                pass
            case events.DeviceWanted():
                turn.wants, turn.deferred = True, event
                self._ask(turn)
            case events.DeviceWantWithdrawn():
                self._withdraw(turn)
            case events.GrantReleased():
                turn.holds, turn.released = False, event
                if self._state(turn) is SessionState.PREEMPTING:
                    self._after_least(turn, self._yield)
            case events.SessionEnded():
                self.forget(turn.process)
                self._to_core(event)
            case _:
                self._to_core(event)

    def _ask(self, turn: _Turn) -> None:
        """Ask for the next turn, for the session itself, too."""
        if self._state(turn) in HOLDING_STATES and self._scheduler.is_contended:
            self._after_least(turn, self._yield)
            return
        self._yield(turn)

    def _withdraw(self, turn: _Turn) -> None:
        turn.wants, turn.deferred = False, None
        if self._state(turn) in _ASKING_STATES:
            self._yield(turn)

    def _yield(self, turn: _Turn) -> None:
        """Give back the turn of the programs, or withdraw what was asked for, and ask anew."""
        if turn.holds:  # its session gives it back
            return
        is_revoked = self._state(turn) is SessionState.PREEMPTING
        if is_revoked:
            self._stop(turn)
        self._leave(turn)
        self._want(turn)
        self._settle(turn)

    def _leave(self, turn: _Turn) -> None:
        """Have the core see that nothing is held or wanted."""
        state, core = self._state(turn), self._scheduler.sessions[turn.id]
        released, turn.released = turn.released, None
        if state in HOLDING_STATES:
            memory = self._profile(turn)
            if released is None:
                released = events.GrantReleased(
                    session=turn.id, at="yield", memory=memory, live_bytes=core.iteration.live
                )
            self._to_core(dataclasses.replace(released, memory=memory))
        elif state in _ASKING_STATES:
            self._to_core(events.DeviceWantWithdrawn(session=turn.id))

    def _want(self, turn: _Turn) -> None:
        deferred, turn.deferred = turn.deferred, None
        self._to_core(deferred or self._own_want(turn))

    def _own_want(self, turn: _Turn) -> events.DeviceWanted:
        return events.DeviceWanted(session=turn.id, memory=self._profile(turn))

    @staticmethod
    def _profile(turn: _Turn) -> MemoryProfile:
        """Return the session's memory; programs need no lane, so one that was not measured needs none."""
        memory = profile_of(turn.process.memory)
        return dataclasses.replace(memory, ephemeral=memory.ephemeral or 0)

    def _state(self, turn: _Turn) -> SessionState:
        return self._scheduler.sessions[turn.id].state

    # --- from the core to sessions ------------------------------------------------------------------------------------

    def disconnect(self, session: SessionId) -> None:
        """Hang up on *session*, which connects again then and reports where it stands."""
        self._inner.disconnect(session)

    def act(self, action: actions.Action) -> Effects:
        """Carry *action* out for a session and its programs."""
        turn = self._turns.get(getattr(action, "session", ""))
        if turn is None:
            return self._inner.act(action)
        match action:
            case actions.Grant():
                self._cancel(turn)
                turn.began = self._loop.time()
                self._run(turn)
                if not turn.wants:
                    return Effects()
                turn.wants, turn.holds = False, True
            case actions.Revoke() if turn.holds:
                self._after_least(turn, lambda turn: self._revoke(turn, action))
                return Effects()
            case actions.Revoke():
                self._after_least(turn, self._yield)
                return Effects()
            case actions.ForceYield() | actions.StopProcess() if not turn.holds or self._is_early(turn):
                return Effects()
            case actions.StopProcess():
                effects = self._inner.act(action)
                if effects.events:  # it was stopped, and wants its next turn
                    turn.holds, turn.wants = False, True
                    self._stop(turn)
                return effects
            case actions.Offload():
                turn.process.offload.declined = "a program that it started computes on the device."
                return Effects((events.OffloadDeclined(session=turn.id),))
            case actions.Refuse() if turn.wants:
                turn.wants = False
                effects = self._inner.act(action)
                return Effects((*effects.events, self._own_want(turn)), effects.rest)
            case actions.Refuse():
                return self._refuse(turn)
        return self._inner.act(action)

    def _revoke(self, turn: _Turn, action: actions.Action) -> None:
        if turn.holds:
            self._inner.act(action)
        else:
            self._yield(turn)

    def _refuse(self, turn: _Turn) -> Effects:
        """Leave programs alone that cannot have a turn; what they use is charged."""
        log.warning("programs of session %s are not stopped: it was refused the device for them", turn.id)
        self._leave_alone(turn.process)
        self.forget(turn.process)
        if turn.has_cell:
            return Effects()
        return Effects((events.CellClosed(session=turn.id, memory=profile_of(turn.process.memory)),))

    def _leave_alone(self, process: SessionHandle) -> None:
        now = self._loop.time()
        self._refused = {name: until for name, until in self._refused.items() if until > now}
        self._refused[process.process] = now + _REFUSED

    # --- stopping and running -----------------------------------------------------------------------------------------

    def _settle(self, turn: _Turn) -> None:
        if self._turns.get(turn.id) is not turn:
            return
        if self._state(turn) in HOLDING_STATES:
            self._run(turn)
        elif self._loop.time() >= turn.free_until:
            self._stop(turn)

    def _stop(self, turn: _Turn) -> None:
        process = turn.process
        if process.end_asked or process.stopped is None:
            return
        try:
            process.stopped.stop(lambda: tree(turn.pids, all_children()) - {process.pid}, process.uid)
        except OSError as error:
            log.warning("programs of session %s are not stopped: %s", turn.id, error)
            self._leave_alone(process)
            self._loop.call_soon(self._give_up, turn)
            return
        if turn.runs_since is not None:
            turn.ran += self._loop.time() - turn.runs_since
            turn.runs_since = None
            self._at(turn, self._loop.time() + _LONGEST_STOP, lambda turn: self._run_for(turn, _LEAST_TURN))

    def _run(self, turn: _Turn) -> None:
        if turn.process.stopped is not None:
            turn.process.stopped.resume()
        if turn.runs_since is None:
            turn.runs_since = self._loop.time()

    def _run_for(self, turn: _Turn, seconds: float) -> None:
        self._run(turn)
        turn.free_until = self._loop.time() + seconds
        self._at(turn, turn.free_until, self._settle)

    def _take_ran(self, turn: _Turn) -> float:
        now, ran = self._loop.time(), turn.ran
        if turn.runs_since is not None:
            ran += now - turn.runs_since
            turn.runs_since = now
        turn.ran = 0.0
        return ran

    # --- time ---------------------------------------------------------------------------------------------------------

    def _is_early(self, turn: _Turn) -> bool:
        return self._loop.time() < turn.began + _LEAST_TURN

    def _after_least(self, turn: _Turn, do: Callable[[_Turn], None]) -> None:
        """Do something once the present turn has lasted long enough; never at once, in the middle of an action."""
        self._at(turn, turn.began + _LEAST_TURN, do)

    def _at(self, turn: _Turn, when: float, do: Callable[[_Turn], None]) -> None:
        self._cancel(turn)
        turn.timer = self._loop.call_at(when, do, turn)

    @staticmethod
    def _cancel(turn: _Turn) -> None:
        if turn.timer is not None:
            turn.timer.cancel()
            turn.timer = None
