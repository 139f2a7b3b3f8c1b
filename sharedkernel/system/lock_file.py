"""One executor at a time serves a runtime directory, one gateway, and one ``sharedkernel host``."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.system.atomic_file import closing_descriptor

#: the file in the runtime directory that its executor locks
EXECUTOR_LOCK = "executor.lock"
#: the file in the runtime directory that its gateway locks (`gateway/lock.py`)
GATEWAY_LOCK = "gateway.lock"
#: the file in the runtime directory that its ``sharedkernel host`` locks
HOST_LOCK = "host.lock"


def lock_directory(directory: Path, lock: str = EXECUTOR_LOCK) -> int:
    """Take *directory* for this process; return the descriptor that holds it, until it is closed or the process ends.

    Parameters
    ----------
    directory
        The runtime directory.
    lock
        :data:`EXECUTOR_LOCK` or :data:`HOST_LOCK`.

    Raises
    ------
    ConfigError
        When another process of the same kind has it.
    """
    descriptor = os.open(directory / lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        other = f"another executor (process {pid})"
        if lock == HOST_LOCK:
            other = f"another `sharedkernel host` (process {pid})"
        raise ConfigError(f"{other} serves {directory}; stop it, or name another --runtime-dir.") from None
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):  # only for the sentence above
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def lend_gateway_lock(directory: Path, uid: int, gid: int) -> None:
    """Make the file that a gateway locks, for an account that may not make files there.

    Parameters
    ----------
    directory
        The runtime directory.
    uid, gid
        The gateway's account.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_descriptor(os.open(directory / GATEWAY_LOCK, flags, 0o600)) as descriptor:
        os.fchown(descriptor, uid, gid)
