"""The gateway's lock: only one gateway at a time serves a runtime directory; and the commands that drain its holder.

Two gateways would both follow the sessions that run when they start, miss those that the other one starts later, and
each count its users' sessions by itself. So a gateway locks a small file in the runtime directory; the lock goes with
its process, however that ends. The file contains its process id, its port while it serves, and while it drains how far.

A gateway that drains starts no more sessions, waits for the running cells, and stops. Sessions stay with their
executors, so a cell that takes too long is not lost: it runs on, and its outputs come with the next gateway.
``sharedkernel gateway --drain`` sends :data:`DRAIN_SIGNAL` to the holder, reads in its file how far it is, and waits
until the lock is released.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.status.document import Draining
from sharedkernel.system.atomic_file import closing_descriptor
from sharedkernel.system.lock_file import GATEWAY_LOCK

log = logging.getLogger(__name__)

#: seconds between attempts to lock
_INTERVAL = 0.02
#: tell a gateway to drain, and to serve on
DRAIN_SIGNAL, CANCEL_SIGNAL = signal.SIGUSR1, signal.SIGUSR2
#: seconds between looks at what a gateway that drains writes
_LOOK = 0.1
#: seconds that a gateway may take to serve on
_CANCEL_PATIENCE = 10.0


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
        drain = "" if draining is None else f" draining {draining.cells} {draining.until or 0:.0f}"
        self._write(f"{os.getpid()} {port}{drain}\n")

    def announce_end(self) -> None:
        """Write that this process is about to end, so that the next gateway waits for it."""
        self._write("")

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._descriptor is not None:
            # Removed before the lock is released: a process that has opened it sees that the name has another file by
            # then. In root's directory only the executor may make and remove the file.
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
        process = port = None
        with contextlib.suppress(OSError):
            process, port, _ = _parse(self._path.read_bytes())
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
    """Return a descriptor that holds the lock on *path*; None if another process holds it, or has just removed it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    os.close(descriptor)
    return None


def _parse(content: bytes) -> tuple[int | None, int | None, Draining | None]:
    """Return the holder's process id and port, and how far it drains; None for what its lock file does not say."""
    numbers = [int(word) for word in content.split() if word.isdigit()]
    draining = Draining(cells=numbers[2], until=numbers[3] or None) if len(numbers) > 3 else None
    return (numbers[0] if numbers else None), (numbers[1] if len(numbers) > 1 else None), draining


def request_drain(runtime_directory: Path, port: int, tell: Callable[[str], None]) -> None:
    """Ask the running gateway to drain; return once it has ended.

    Parameters
    ----------
    runtime_directory
        The directory that it serves.
    port
        The port that it serves on.
    tell
        Called with sentences that say how far it is.

    Raises
    ------
    ConfigError
        When there is no such gateway, or its drain is cancelled.
    """
    with _find_gateway(runtime_directory, port) as gateway:
        gateway.send(DRAIN_SIGNAL)
        tell(
            f"Draining the gateway at port {port}: it starts no more sessions, and stops once its running cells have "
            "ended. After Ctrl-C it goes on draining; --drain --cancel has it serve on."
        )
        draining: Draining | None = None
        try:
            while not gateway.has_ended():
                if (now := gateway.draining()) != draining and not gateway.is_ending():
                    if now is None:
                        raise ConfigError(f"the drain was cancelled; the gateway at port {port} serves on.")
                    tell(_progress(now))
                    draining = now
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            tell(f"The gateway at port {port} goes on draining; --drain --cancel has it serve on.")
            raise
        tell("The gateway has stopped; sessions run on.")


def cancel_drain(runtime_directory: Path, port: int, tell: Callable[[str], None]) -> None:
    """Have the running gateway, which drains, serve on.

    Parameters
    ----------
    runtime_directory, port, tell
        As :func:`request_drain` takes them.

    Raises
    ------
    ConfigError
        When there is no such gateway, it does not drain, or it has ended.
    """
    with _find_gateway(runtime_directory, port) as gateway:
        if not gateway.is_ending() and gateway.draining() is None:
            raise ConfigError(f"the gateway at port {port} is not draining.")
        gateway.send(CANCEL_SIGNAL)
        deadline = time.monotonic() + _CANCEL_PATIENCE
        while gateway.draining() is not None or gateway.is_ending():
            if gateway.is_ending() or gateway.has_ended():
                raise ConfigError(f"it is too late: the gateway at port {port} has stopped. Sessions run on; start it.")
            if time.monotonic() > deadline:
                raise ConfigError(f"the gateway at port {port} does not react; its log may say why.")
            time.sleep(_LOOK)
        tell(f"The gateway at port {port} serves on, and starts sessions again.")


class _RunningGateway:
    """The gateway that holds a lock.

    Parameters
    ----------
    descriptor
        Of the lock file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process, self.port, _ = self._said()

    def send(self, signum: int) -> None:
        """Send it a signal, unless it is ending already.

        Raises
        ------
        ConfigError
            When this account may not.
        """
        try:
            if self._process:
                os.kill(self._process, signum)
        except OSError as error:
            raise ConfigError(
                f"the gateway at port {self.port} cannot be asked to drain ({error.strerror}); run this as its account."
            ) from None

    def serves(self, port: int) -> bool:
        """Whether it serves *port*, or did: one that is ending does not say any more."""
        return not self._process or self.port == port

    def draining(self) -> Draining | None:
        """Return how far it drains; None: it does not."""
        return self._said()[2]

    def is_ending(self) -> bool:
        """Whether it is about to end, or another gateway is there."""
        return self._said()[0] != self._process or not self._process

    def has_ended(self) -> bool:
        """Whether it has released the lock."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._said()[0] not in (None, self._process)
        return True

    def _said(self) -> tuple[int | None, int | None, Draining | None]:
        return _parse(os.pread(self._descriptor, 64, 0))


@contextlib.contextmanager
def _find_gateway(runtime_directory: Path, port: int) -> Iterator[_RunningGateway]:
    missing = ConfigError(
        f"no gateway of yours serves port {port} with {runtime_directory}; check --port and --runtime-dir."
    )
    try:
        descriptor = os.open(runtime_directory / GATEWAY_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise missing from None
    with closing_descriptor(descriptor):
        gateway = _RunningGateway(descriptor)
        if gateway.has_ended() or not gateway.serves(port):
            raise missing
        yield gateway


def _progress(draining: Draining) -> str:
    if not draining.cells:
        return "No cell runs; it stops now."
    cells = "1 cell" if draining.cells == 1 else f"{draining.cells} cells"
    if draining.until is None:
        return f"Waiting for {cells}."
    return f"Waiting for {cells}, until {time.strftime('%H:%M:%S', time.localtime(draining.until))} at the latest."
