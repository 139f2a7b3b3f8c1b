"""Draining: a gateway that starts no more sessions waits for the running cells, and stops.

Sessions stay with their executors, so a cell that takes too long is not lost: it runs on, and its outputs come with the
next gateway. ``sharedkernel gateway --drain`` sends :data:`DRAIN_SIGNAL` to the process that holds the
:mod:`~sharedkernel.gateway.lock`, and waits until the lock is released.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.gateway.lock import parse_holder
from sharedkernel.system.lock_file import GATEWAY_LOCK

#: tells a gateway to drain
DRAIN_SIGNAL = signal.SIGUSR1
#: seconds between checks for running cells
_INTERVAL = 0.1


async def wait_until_idle(registry: SessionRegistry, seconds: float) -> list[str]:
    """Wait until every kernel that is busy now has been idle, has another process or is gone.

    Parameters
    ----------
    registry
        The kernels; they may change meanwhile.
    seconds
        How long to wait at most; 0: no limit.

    Returns
    -------
    running
        Ids of the kernels whose cells still run.
    """
    running = {name: kernel.incarnation for name, kernel in _busy(registry).items()}
    deadline = asyncio.get_running_loop().time() + seconds
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        busy = _busy(registry)
        for name, incarnation in list(running.items()):
            if name not in busy or busy[name].incarnation != incarnation:
                del running[name]
    return list(running)


def _busy(registry: SessionRegistry) -> dict[str, SessionKernel]:
    return {str(kernel.kernel_id): kernel for kernel in registry.all() if kernel.execution_state == "busy"}


def request_drain(runtime_directory: Path, port: int) -> None:
    """Ask the running gateway to drain; return once it has ended.

    Parameters
    ----------
    runtime_directory
        The directory that it serves.
    port
        The port that it serves on.

    Raises
    ------
    ConfigError
        When there is no such gateway.
    """
    missing = ConfigError(
        f"no gateway of yours serves port {port} with {runtime_directory}; check --port and --runtime-dir."
    )
    try:
        descriptor = os.open(runtime_directory / GATEWAY_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise missing from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            process, served = parse_holder(os.pread(descriptor, 64, 0))
            if process and served != port:
                raise missing from None
            if process:  # else it is ending already
                os.kill(process, DRAIN_SIGNAL)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        else:
            raise missing
    except OSError as error:
        raise ConfigError(f"the gateway at port {port} cannot be asked to drain ({error}).") from None
    finally:
        os.close(descriptor)
