"""The gateway's lock: only one gateway at a time serves a runtime directory.

Two gateways would both follow the sessions that run when they start, miss those that the other one starts later, and
each count its users' sessions by itself. So a gateway locks a small file in the runtime directory; the lock goes with
its process, however that ends. The file contains its process id, its port while it serves, and while it drains how far.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.status.document import Draining
from sharedkernel.system.lock_file import GATEWAY_LOCK

log = logging.getLogger(__name__)

#: seconds between attempts
_INTERVAL = 0.02
#: word before the numbers of a drain
_DRAINING = "draining"


class GatewayLock:
    """The lock of this process as the gateway of a runtime directory.

    Parameters
    ----------
    runtime_directory
        The directory to serve. If the gateway before has announced its end, this waits for it.
    patience
        Seconds to wait for a gateway that has not announced its end: one that was just killed could not.

    Raises
    ------
    ConfigError
        When another gateway serves there.
    """

    def __init__(self, runtime_directory: Path, *, patience: float = 2.0) -> None:
        self._path = runtime_directory / GATEWAY_LOCK
        self._descriptor = self._wait_for_lock(patience)
        self._write(f"{os.getpid()}\n")

    def publish_port(self, port: int, draining: Draining | None = None) -> None:
        """Write the port on which this gateway serves, and how far it is *draining*."""
        drain = "" if draining is None else f" {_DRAINING} {draining.cells} {draining.until or 0:.0f}"
        self._write(f"{os.getpid()} {port}{drain}\n")

    def announce_end(self) -> None:
        """Write that this process is about to end, so that the next gateway waits for it."""
        self._write("")

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._descriptor is None:
            return
        # Removed before the lock is released: a process that has opened it sees that the name has another file by then.
        # In root's directory only the executor may make and remove the file.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def _wait_for_lock(self, patience: float) -> int | None:
        """Return a descriptor that holds the lock; None if this account may not lock the file."""
        patient_until = time.monotonic() + patience
        is_logged = False
        while True:
            is_over = time.monotonic() >= patient_until
            try:
                if (descriptor := _lock(self._path)) is not None:
                    return descriptor
                self._check_is_ending(is_over)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                # The executor makes it for this account, and may be starting right now. Serving matters more.
                if is_over:
                    log.warning(
                        "%s cannot be locked: this gateway cannot be drained, and another one could start", self._path
                    )
                    return None
            if not is_logged:
                log.info("waiting for %s", self._path)
                is_logged = True
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
        if self._descriptor is None:
            return
        # Over what the gateway before has written: it may have left the only room on a full disk.
        data = text.encode().ljust(os.fstat(self._descriptor).st_size)
        try:
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(text))
        except OSError as error:
            with contextlib.suppress(OSError):  # an earlier gateway's process id may be another process's by now
                os.ftruncate(self._descriptor, 0)
            log.warning(
                "%s could not be written (%s): this gateway serves, but cannot be drained, and another one waits for "
                "its end instead of naming it",
                self._path,
                error.strerror,
            )


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
        os.close(descriptor)  # the gateway before has removed the file meanwhile


def _read(path: Path) -> tuple[int | None, int | None]:
    try:
        return parse_holder(path.read_bytes())
    except OSError:
        return None, None


def parse_holder(content: bytes) -> tuple[int | None, int | None]:
    """Return the holder's process id and port from the content of a lock file; None for what is missing."""
    numbers = [int(word) for word in content.split() if word.isdigit()]
    return (numbers[0] if numbers else None), (numbers[1] if len(numbers) > 1 else None)


def parse_draining(content: bytes) -> Draining | None:
    """Return how far the holder drains, from the content of a lock file; None if it does not."""
    _, word, rest = content.decode(errors="replace").partition(f" {_DRAINING} ")
    numbers = [int(each) for each in rest.split() if each.isdigit()]
    return Draining(cells=numbers[0], until=numbers[1] or None) if word and len(numbers) > 1 else None
