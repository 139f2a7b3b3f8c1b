"""The logs of an executor's processes: none grows without bound, and few are left of sessions that ended.

Sessions under users' own accounts leave their log in this directory when they become their user
(`session/kernel/own_log.py`), so what a user writes is never here. At other levels a session could write here at any
speed: the bound is for faults.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from sharedkernel.paths import log_name

#: bytes of a log above which only its end is kept, and how much of that
MOST_LOG_BYTES, KEPT_LOG_BYTES = 4 << 20, 64 << 10
#: logs of sessions that ended by themselves; the oldest of more are removed
MOST_OLD_LOGS = 32


def bound_logs(directory: Path, live: Container[str]) -> None:
    """Shorten long logs in *directory*, and remove old ones.

    Parameters
    ----------
    directory
        Of the logs; private.
    live
        Names of the processes whose logs are in use.
    """
    for path in directory.glob("*.log"):
        with contextlib.suppress(OSError):  # it is gone, or there is no room: the next look tries again
            if path.stat().st_size > MOST_LOG_BYTES:
                _keep_end(path)
    old = [path for path in directory.glob(log_name("*")) if path.stem.partition("-")[2] not in live]
    old.sort(key=_written_at, reverse=True)
    for path in old[MOST_OLD_LOGS:]:
        path.unlink(missing_ok=True)


def _keep_end(path: Path) -> None:
    """Cut off the beginning of the file; processes that append to it continue at its new end."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, KEPT_LOG_BYTES, size - KEPT_LOG_BYTES)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"(the beginning is cut off)\n" + end.partition(b"\n")[2])
    finally:
        os.close(descriptor)


def _written_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
