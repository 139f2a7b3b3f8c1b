"""Since when nothing has run in each session, seen from outside.

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
from collections.abc import Iterable, Mapping

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Turn, Word

log = logging.getLogger(__name__)

#: seconds between looks
INTERVAL = 2.0
#: processor-seconds per second up to which a session counts as idle; a kernel alone needs a tenth of it
_IDLE_SHARE = 0.03

_TICKS = os.sysconf("SC_CLK_TCK")


class IdleMonitor:
    """Keeps each session's `used_at`; needs a running event loop.

    Parameters
    ----------
    sessions
        Processes that serve a session, by its id.
    """

    def __init__(self, sessions: Mapping[str, SessionHandle]) -> None:
        self._sessions = sessions
        #: processor-seconds of each session's processes, by the leader's process id, and when they were looked at
        self._before: dict[int, float] = {}
        self._looked_at = time.monotonic()
        self._due: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on."""
        self._looked_at = time.monotonic()
        self._due = asyncio.get_running_loop().call_later(INTERVAL, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._due is not None:
            self._due.cancel()

    def _look(self) -> None:
        self._due = asyncio.get_running_loop().call_later(INTERVAL, self._look)
        now = time.monotonic()
        processes = list(self._sessions.values())
        try:
            used = processor_seconds({process.pid for process in processes})
        except OSError as error:  # no descriptor is left: what was used meanwhile is seen at the next look
            log.warning("cannot see which sessions are used: %s", error.strerror)
            return
        allowed = _IDLE_SHARE * (now - self._looked_at)
        for process in processes:
            ran = used.get(process.pid, 0.0) - self._before.get(process.pid, 0.0) > allowed
            # A new session counts as used, however little it has run: it would never be idle otherwise.
            if ran or process.used_at is None or process.page.words[Word.TURN] != Turn.IDLE:
                process.used_at = now
        self._before, self._looked_at = used, now


def processor_seconds(leaders: Iterable[int]) -> dict[int, float]:
    """Return the processor time of all processes of each of these sessions (as `setsid` made them), by its leader."""
    wanted = set(leaders)
    seconds: dict[int, float] = dict.fromkeys(wanted, 0.0)
    for name in os.listdir("/proc") if wanted else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            # after the command's name, which may hold anything: state, parent, group, session, …, user and system time
            fields = stat.read().rpartition(b")")[2].split()
            if (leader := int(fields[3])) in wanted:
                # with that of its children that have ended
                seconds[leader] += sum(map(int, fields[11:15])) / _TICKS
    return seconds
