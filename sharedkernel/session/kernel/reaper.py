"""Reap adopted programs that have ended, so that they do not stay in the system's process list.

A session adopts what its programs leave behind (:func:`sharedkernel.system.processes.adopt_orphans`), and only a parent
can take an ended process off the list. But which of its children it has adopted, the system does not tell, and to take
note of an end that the user's own code waits for would cost them its exit code. So only those are taken whose session
of the operating system is neither this process's nor of their own making: no child that was started here can be in such
a one. Background programs of `!` commands are, and daemons; the others stay until this process ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = Path("/proc/self/task")


def reap_adopted() -> None:
    """Reap every child that was certainly adopted (a microsecond while no child has ended)."""
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        own = os.getsid(0)
        for pid in children():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.getsid(pid) not in (own, pid):
                    os.waitpid(pid, os.WNOHANG)


def children() -> Iterator[int]:
    """Yield the process ids of this process's children, whichever thread has them."""
    for thread in _THREADS.iterdir():
        with contextlib.suppress(OSError):  # the thread is gone, or the system has no such list
            yield from map(int, (thread / "children").read_text().split())
