"""One gateway at a time serves a runtime directory; which one, is to be found there.

Two would both adopt the sessions that are there when they start, hear nothing of those that the other starts later,
and each count its users' sessions for itself. So a gateway holds a lock on a small file in the runtime directory, which
goes with its process, however that ends. The file has its process id, and its port while it serves;
``sharedkernel gateway --drain`` asks whoever holds it, by a signal, and waits for the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import signal
import time
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.executor.directory_lock import GATEWAY_LOCK

log = logging.getLogger(__name__)

#: what asks a gateway to drain
DRAIN_SIGNAL = signal.SIGUSR1
#: seconds between looks
_INTERVAL = 0.02


class Presence:
    """Says that this process is the gateway of a runtime directory; gone with the process, whatever becomes of that.

    Parameters
    ----------
    runtime_directory
        Where it serves. A gateway that is just ending there is waited for.
    patience
        Seconds that one which does not say that it ends gets all the same: one that was just killed says nothing.

    Raises
    ------
    ConfigError
        When another gateway serves there.
    """

    def __init__(self, runtime_directory: Path, *, patience: float = 2.0) -> None:
        self._path = runtime_directory / GATEWAY_LOCK
        self._descriptor = self._wait_for_lock(patience)
        self._write(f"{os.getpid()}\n")

    def serve(self, port: int) -> None:
        """Say that requests are taken at *port*."""
        self._write(f"{os.getpid()} {port}\n")

    def begin_end(self) -> None:
        """Say that this process is about to end, so that the next one waits for it."""
        self._write("")

    def end(self) -> None:
        """Say nothing any more."""
        if self._descriptor is None:
            return
        # Before the lock goes: whoever has opened the file by then finds that it is no longer the one of this name.
        # In root's directory the file is the executor's to make and to remove.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def _wait_for_lock(self, patience: float) -> int | None:
        """Return a descriptor that holds the lock; None if this account can have none."""
        patient_until = time.monotonic() + patience
        is_told = False
        while True:
            is_over = time.monotonic() >= patient_until
            try:
                if (descriptor := _lock(self._path)) is not None:
                    return descriptor
                self._check_is_ending(is_over)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                # The executor makes it for this account, and may be just starting. Notebooks matter more.
                if is_over:
                    log.warning(
                        "%s cannot be locked: this gateway cannot be drained and keeps no other out", self._path
                    )
                    return None
            if not is_told:
                log.info("waiting for %s", self._path)
                is_told = True
            time.sleep(_INTERVAL)

    def _check_is_ending(self, is_over: bool) -> None:
        process, port = _read(self._path)
        if process is None or not is_over:
            return
        where = "" if port is None else f", port {port}"
        raise ConfigError(
            f"another gateway (process {process}{where}) serves {self._path.parent}; stop it (`--drain` lets its cells "
            "end first), or name another --runtime-dir."
        )

    def _write(self, text: str) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)


def ask_to_drain(runtime_directory: Path, port: int) -> None:
    """Ask the gateway at *port* to drain; returns once it has ended.

    Raises
    ------
    ConfigError
        When there is none.
    """
    path = runtime_directory / GATEWAY_LOCK
    missing = ConfigError(
        f"no gateway of yours serves port {port} with {runtime_directory}; check --port and --runtime-dir."
    )
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise missing from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            process, served = _parse(os.pread(descriptor, 64, 0))
            if process and served != port:
                raise missing from None
            if process:  # or it ends already
                os.kill(process, DRAIN_SIGNAL)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        else:
            raise missing
    except OSError as error:
        raise ConfigError(f"the gateway at port {port} cannot be asked to drain ({error}).") from None
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock on *path*; None if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the gateway before this one has removed it meanwhile


def _read(path: Path) -> tuple[int | None, int | None]:
    try:
        return _parse(path.read_bytes())
    except OSError:
        return None, None


def _parse(content: bytes) -> tuple[int | None, int | None]:
    """Return the process and the port that *content* names, each None if it does not."""
    numbers = [int(word) for word in content.split() if word.isdigit()]
    return (numbers[0] if numbers else None), (numbers[1] if len(numbers) > 1 else None)
