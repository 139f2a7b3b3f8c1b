"""Carry out the scheduling core's actions on sessions.

A grant and a refusal are messages; a revocation is a word in the session's shared page; a forced yield, and a summons
to the gate, is a signal. A holder that does not react to signals either is stopped as a process until its next turn.

What comes of an action at once is returned as events (`driver.py`). What sessions report, `controller.py` turns into
events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from sharedkernel import protocol
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.dispatch.driver import Counters, Effects
from sharedkernel.executor.dispatch.users import Users
from sharedkernel.executor.processes.process import SessionHandle, id_of, profile_of
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Word
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.model.types import LaneId, SessionId
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.status.refusal_text import explain_shortage

log = logging.getLogger(__name__)

#: seconds for which a session is believed that it hands its lane over
_MOST_HAND_OVER = 10.0


class SessionActions:
    """Carries out decisions; needs a running event loop.

    Parameters
    ----------
    scheduler
        Whose decisions they are; only read.
    served
        What is shared.
    sessions
        Processes that serve a session, by its id.
    users
        Usage of each user.
    counters
        Count the waits that end.
    update_limits
        Called with a session whose memory may grow to something else now.
    end
        Ends a session for a reason: a slug, and a sentence for its user.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        served: ServedDevice,
        sessions: Mapping[str, SessionHandle],
        users: Users,
        counters: Counters,
        update_limits: Callable[[SessionHandle], None],
        end: Callable[[SessionHandle, str, str], None],
    ) -> None:
        self._scheduler = scheduler
        self._served = served
        self._sessions = sessions
        self._users = users
        self._counters = counters
        self._update_limits = update_limits
        self._end = end
        self._now = asyncio.get_running_loop().time

    def disconnect(self, session: SessionId) -> None:
        """Hang up on *session*, which connects again then and reports where it stands."""
        if (process := self._sessions.get(session)) is not None:
            process.disconnect()

    def act(self, action: actions.Action) -> Effects:
        """Carry out one decision; return what came of it."""
        match action:
            case actions.Grant(session=session, lane=lane, parallel=parallel):
                return self._grant(self._sessions[session], lane, parallel)
            case actions.RemoveLane(lane=lane) if self._served.lane_server is not None:
                self._served.lane_server.removed(lane)
            case actions.Revoke(session=session):
                self._sessions[session].page.words[Word.PREEMPT] = 1
            case actions.ForceYield(session=session):
                self._force(self._sessions[session])
            case actions.StopProcess(session=session):
                return Effects(self._stop(self._sessions[session]))
            case actions.Summon(session=session):
                self._sessions[session].page.words[Word.SUMMONED] = 1
                self._sessions[session].send_signal(FORCE_SIGNAL)
            case actions.Refuse(session=session, shortage=shortage):
                self._refuse(self._sessions[session], shortage.reason, explain_shortage(shortage))
            case actions.Offload(session=session):
                return Effects(self._offload(self._sessions[session]))
            case actions.Restore(session=session):
                self._restore(self._sessions[session])
        return Effects()

    def _restore(self, process: SessionHandle) -> None:
        self._record_wait(process)
        process.promised_bytes = self._scheduler.sessions[id_of(process)].offload.size + process.growth
        self._update_limits(process)
        process.send(protocol.RestoreCommand())

    def _force(self, process: SessionHandle) -> None:
        """Make a holder yield by a signal, unless it does not know yet that it has the device."""
        if process.grant.is_lane_coming:
            return
        if not process.grant.num_signals:
            process.grant.first_signal_at = self._now()
        process.grant.num_signals += 1
        process.send_signal(FORCE_SIGNAL)

    def _stop(self, process: SessionHandle) -> Sequence[events.Event]:
        """Stop a holder that does not react to signals, unless it is about to hand its lane over."""
        if not process.grant.num_signals:  # its lane has only come now: it gets its signal first
            self._force(process)
            return ()
        if process.page.words[Word.HANDING_OVER] and self._now() < process.grant.first_signal_at + _MOST_HAND_OVER:
            return ()  # it yields, and waits for the device; stopped, it would leave its lane to nobody
        log.info("session %s does not yield; it is stopped until its next turn", process.session)
        process.send_signal(signal.SIGSTOP)
        process.grant.is_stopped = True
        memory = profile_of(process.memory)
        return (events.ProcessStopped(session=id_of(process), memory=memory, live_bytes=process.live_bytes),)

    def _refuse(self, process: SessionHandle, reason: str, message: str) -> None:
        log.info("refused session %s the device (%s): %s", process.session, reason, message)
        if process.grant.is_stopped:  # it asks for nothing
            self._let_come(process)
            return
        process.wait.since = None
        process.send(protocol.RefusedGrant(reason=reason, message=message))

    def _offload(self, process: SessionHandle) -> Sequence[events.Event]:
        """Ask a session to move its memory away; a stopped one cannot before it has come to its gate.

        One that is kept only to be had back, and cannot move its memory, is ended.
        """
        if process.lingers_until is not None and process.offload.is_unmovable:
            why = f"its memory was needed and could not be moved away: {process.offload.declined}"
            self._end(process, "memory", f"Your session had been shut down, and was ended: {why}")
            return ()
        if not process.grant.is_stopped:
            process.send(protocol.OffloadCommand())
            return ()
        self._let_come(process)
        session = id_of(process)
        return events.DeviceWantWithdrawn(session=session), events.OffloadDeclined(session=session)

    def _let_come(self, process: SessionHandle) -> None:
        """Let a stopped session run to where it yields, and ask for the device itself."""
        process.grant.is_unsanctioned = True
        process.page.words[Word.PREEMPT] = 1
        resume(process)

    def _grant(self, process: SessionHandle, lane: LaneId, parallel: int) -> Effects:
        process.page.words[Word.PREEMPT] = 0
        process.grant.num_signals = 0
        if process.grant.is_stopped:
            resume(process)
            return Effects()
        self._record_wait(process)
        # What it lacks in the middle of an iteration is the session's own: a lane of that size would count it twice.
        size = None if process.growth else self._size_of(lane, process)
        if process.growth:
            process.promised_bytes = process.live_bytes + process.growth
            process.growth = 0
        caused = () if process.grant.is_unsanctioned else self._expect_context(process)
        # Before it begins: others may have taken or freed memory while it waited, and its context is not to be leased.
        self._update_limits(process)
        if process.grant.is_unsanctioned:  # it holds one already, of the executor before this
            process.grant.is_unsanctioned = False
            return Effects()
        # Side by side, sessions must share the processors, or their threads fight over them.
        threads = max(1, (os.cpu_count() or 1) // parallel) if parallel > 1 else 0
        lanes = self._served.lane_server
        if lanes is not None and size is not None and lanes.lacks_units(process, lane, size):
            process.grant.is_lane_coming = True
            return Effects(caused, self._grant_later(lanes, process, lane, size, threads))
        has_lane = lanes is not None and lanes.granted(process, lane, size)
        process.send(protocol.Granted(threads=threads, has_lane=has_lane))
        return Effects(caused)

    def _expect_context(self, process: SessionHandle) -> Sequence[events.Event]:
        """Charge a session that will make its context on a GPU now: until it has, others would be given that memory."""
        context = expected_context(process, self._sessions.values(), self._served)
        if not context:
            return ()
        process.memory = msgspec.structs.replace(process.memory, framework=context)
        return (events.MemoryMeasured(session=id_of(process), memory=profile_of(process.memory)),)

    async def _grant_later(
        self, lanes: LaneServer, process: SessionHandle, lane: LaneId, size: int, threads: int
    ) -> None:
        """Create what a lane lacks while others are served, and tell its session of the grant then."""
        try:
            await lanes.prepare(lane, size)
            if process.session is not None and self._sessions.get(process.session) is process:
                has_lane = lanes.granted(process, lane, size)
                process.send(protocol.Granted(threads=threads, has_lane=has_lane))
        finally:
            process.grant.is_lane_coming = False
            lanes.give_up(lane)

    def _size_of(self, lane: LaneId, process: SessionHandle) -> int | None:
        """Return the bytes to make *lane* of for a turn of *process*; None: it should do without.

        A session whose need is not measured has, for the core, all that there may be; what it really takes is its own
        then, and its lane follows once that is known. Nor do the others need more than they were seen to.
        """
        scheduler = self._scheduler
        if not scheduler.sessions[id_of(process)].is_measured:
            return None
        entry = scheduler.lanes.by_id[lane]
        # The core may not have cut the lane yet that it made when nothing was known.
        return min(entry.size, max(each.need for each in entry.sessions.values() if each.is_measured))

    def _record_wait(self, process: SessionHandle) -> None:
        """Record that what *process* waited for has come."""
        if process.wait.since is not None:
            waited = self._now() - process.wait.since
            process.wait.past.add(waited)
            self._users.records[process.user or ""].waits.add(waited)
            self._counters.waited(waited)
            process.wait.since = None


def expected_context(process: SessionHandle, others: Iterable[SessionHandle], served: ServedDevice) -> int:
    """Return the bytes that a session's context will take on a GPU: the least that another's takes; 0: it has one.

    What a context takes is known only once one is made.
    """
    if served.device.kind != "cuda" or process.memory.framework:
        return 0
    # Their pages have it without torch's slack, which their reports count as framework memory, too.
    known = (min(other.memory.framework, other.page.words[Word.FRAMEWORK]) for other in others)
    return min((context for context in known if context > 0), default=0)


def resume(process: SessionHandle) -> None:
    """Let a process run again that was stopped."""
    process.grant.is_stopped = False
    process.send_signal(signal.SIGCONT)
