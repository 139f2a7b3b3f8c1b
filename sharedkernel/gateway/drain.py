"""Draining: a gateway that starts no more sessions waits for the running cells, and stops.

Sessions stay with their executors, so a cell that takes too long is not lost: it runs on, and its outputs come with the
next gateway. ``sharedkernel gateway --drain`` sends :data:`DRAIN_SIGNAL` to the process that holds the
:mod:`~sharedkernel.gateway.lock`, reads there how far it is, and waits until the lock is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.gateway.lock import parse_draining, parse_holder
from sharedkernel.status.document import Draining
from sharedkernel.system.lock_file import GATEWAY_LOCK

#: tell a gateway to drain, and to serve on
DRAIN_SIGNAL, CANCEL_SIGNAL = signal.SIGUSR1, signal.SIGUSR2
#: seconds between checks for running cells, and for what the gateway writes
_INTERVAL = 0.1
#: seconds that a gateway may take to serve on
_CANCEL_PATIENCE = 10.0


async def wait_until_idle(registry: SessionRegistry, seconds: float, tell: Callable[[int], None]) -> list[str]:
    """Wait until every kernel that is busy now has been idle, has another process or is gone.

    Parameters
    ----------
    registry
        The kernels; they may change meanwhile.
    seconds
        How long to wait at most; 0: no limit.
    tell
        Called with the number of those kernels, at first and whenever it changes.

    Returns
    -------
    running
        Ids of the kernels whose cells still run.
    """
    running = {name: kernel.incarnation for name, kernel in _busy(registry).items()}
    deadline = asyncio.get_running_loop().time() + seconds
    tell(told := len(running))
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        busy = _busy(registry)
        for name, incarnation in list(running.items()):
            if name not in busy or busy[name].incarnation != incarnation:
                del running[name]
        if len(running) != told:
            tell(told := len(running))
    return list(running)


def _busy(registry: SessionRegistry) -> dict[str, SessionKernel]:
    return {str(kernel.kernel_id): kernel for kernel in registry.all() if kernel.execution_state == "busy"}


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
                time.sleep(_INTERVAL)
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
            time.sleep(_INTERVAL)
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
        self._process, self.port = parse_holder(self._content())

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
        return parse_draining(self._content())

    def is_ending(self) -> bool:
        """Whether it is about to end, or another gateway is there."""
        return parse_holder(self._content())[0] != self._process or not self._process

    def has_ended(self) -> bool:
        """Whether it has released the lock."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse_holder(self._content())[0] not in (None, self._process)
        return True

    def _content(self) -> bytes:
        return os.pread(self._descriptor, 64, 0)


@contextlib.contextmanager
def _find_gateway(runtime_directory: Path, port: int) -> Iterator[_RunningGateway]:
    missing = ConfigError(
        f"no gateway of yours serves port {port} with {runtime_directory}; check --port and --runtime-dir."
    )
    try:
        descriptor = os.open(runtime_directory / GATEWAY_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise missing from None
    try:
        gateway = _RunningGateway(descriptor)
        if gateway.has_ended() or not gateway.serves(port):
            raise missing
        yield gateway
    finally:
        os.close(descriptor)


def _progress(draining: Draining) -> str:
    if not draining.cells:
        return "No cell runs; it stops now."
    cells = "1 cell" if draining.cells == 1 else f"{draining.cells} cells"
    if draining.until is None:
        return f"Waiting for {cells}."
    return f"Waiting for {cells}, until {time.strftime('%H:%M:%S', time.localtime(draining.until))} at the latest."
