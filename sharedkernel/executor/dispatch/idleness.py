"""Sessions in which nothing runs, seen from outside: holders while others wait, and all of them since when.

A cell keeps its grant between boundaries, also while it sleeps, or waits for a worker, a socket or its user. A server
of a model, or a loop that plots, has no boundaries at all: with each of its waits the device would stand still until
the holder's quantum is over. So while sessions wait, the processor time of each holder's process is read every few
milliseconds. One that got none of it, and has no thread that could run, computes nothing on the host. It may wait for a
GPU (on an H100 such a wait takes no processor time), so there the session itself is asked.

A session is in use while one of its cells is open, and while its processes use the processor: what a cell has left
running (a thread, a server, a program) counts, an open page does not. The little that an idle kernel needs to keep its
connections alive is not use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import psutil

from sharedkernel import protocol
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

#: seconds between two looks at holders; for so long a holder has to have computed nothing
LOOK_INTERVAL = 0.005
#: seconds between two questions to a session that may wait for its GPU
ASK_INTERVAL = 0.02
#: a process uses more than this part of a processor for itself: the session's own threads look at clocks and memory
_OWN_PART = 0.1
#: states of a thread in which it computes, or would if there were a processor free for it
_COMPUTING = ("R", "D")
#: seconds between looks at all sessions
INTERVAL = 2.0
#: processor-seconds per second up to which a session counts as idle; a kernel alone needs a tenth of it
_IDLE_SHARE = 0.03


class IdleHolders:
    """Looks at the holders of one device while others wait.

    Parameters
    ----------
    scheduler
        Knows who holds the device; only read.
    sessions
        Processes that serve a session, by its id.
    handle
        Called with one that computes nothing.
    computes_elsewhere
        Whether sessions compute on a device that takes no processor time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sessions: Mapping[str, SessionHandle],
        handle: Callable[[SessionHandle], None],
        *,
        computes_elsewhere: bool,
    ) -> None:
        self._scheduler = scheduler
        self._sessions = sessions
        self._handle = handle
        self._computes_elsewhere = computes_elsewhere
        #: when each was asked last, by its process
        self._asked: dict[str, float] = {}
        #: when each holder's processor time was read last, by its process, and what it was then
        self._last: dict[str, tuple[float, float]] = {}

    async def watch(self, wait_for_change: Callable[[], Awaitable[None]]) -> None:
        """Look for as long as the executor runs.

        Parameters
        ----------
        wait_for_change
            Returns once something was decided.
        """
        while True:
            if not self._scheduler.is_contended:
                self._last.clear()
                self._asked.clear()
                await wait_for_change()
                continue
            await asyncio.sleep(LOOK_INTERVAL)
            self._look()

    def _look(self) -> None:
        before, self._last = self._last, {}
        for session in list(self._scheduler.clock.holders.values()):
            process = self._sessions.get(session.id)
            if process is None or session.state is not SessionState.RUNNING or process.grant.is_lane_coming:
                continue
            now, used = time.monotonic(), processor_seconds(process.pid)
            if used is None:
                continue
            self._last[process.process] = now, used
            if process.process not in before:
                continue
            since, used_before = before[process.process]
            if used - used_before < _OWN_PART * (now - since) and not _is_computing(process.pid):
                self._found(process, now)

    def _found(self, process: SessionHandle, now: float) -> None:
        """Handle a holder whose process computes nothing."""
        if not self._computes_elsewhere:
            self._handle(process)
            return
        has_turn = process.page.words[Word.TURN] == Turn.HOLDING  # else its programs alone do
        if has_turn and now >= self._asked.get(process.process, 0.0) + ASK_INTERVAL:
            self._asked[process.process] = now
            process.send(protocol.AskIdle())


def processor_seconds(pid: int) -> float | None:
    """Return the processor time that all threads of a process have used, in seconds; None: it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3), which Python has for threads alone
    except OSError:
        return None


def _is_computing(pid: int) -> bool:
    """Return whether a thread of a process runs or could: on a crowded machine it may get no processor for a while."""
    try:
        stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return any(stat.rpartition(") ")[2][:1] in _COMPUTING for stat in stats)


async def watch_use(sessions: Mapping[str, SessionHandle]) -> None:
    """Keep each session's `used_at`, for as long as the executor runs.

    Parameters
    ----------
    sessions
        Processes that serve a session, by its id.
    """
    # processor-seconds of each session's processes, by the leader's process id, and when they were looked at
    before: dict[int, float] = {}
    looked_at = time.monotonic()
    while True:
        await asyncio.sleep(INTERVAL)
        now, processes = time.monotonic(), list(sessions.values())
        try:
            used = _seconds_of_sessions(process.pid for process in processes)
        except Exception as error:  # such as no descriptor left: what was used meanwhile is seen at the next look
            log.warning("cannot see which sessions are used: %r", error)
            continue
        for process in processes:
            ran = used.get(process.pid, 0.0) - before.get(process.pid, 0.0) > _IDLE_SHARE * (now - looked_at)
            # A new session counts as used, however little it has run: it would never be idle otherwise.
            if ran or process.used_at is None or process.page.words[Word.TURN] != Turn.IDLE:
                process.used_at = now
        before, looked_at = used, now


def _seconds_of_sessions(leaders: Iterable[int]) -> dict[int, float]:
    """Return the processor time of all processes of each of these sessions (as `setsid` made them), by its leader."""
    seconds = dict.fromkeys(leaders, 0.0)
    for process in psutil.process_iter() if seconds else ():
        with contextlib.suppress(OSError, psutil.Error):
            if (leader := os.getsid(process.pid)) in seconds:
                seconds[leader] += sum(process.cpu_times()[:4])  # with those of its children that have ended
    return seconds
