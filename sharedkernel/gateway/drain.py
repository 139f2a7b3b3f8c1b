"""Stopping a gateway without cutting anybody off: it takes no new sessions, waits for the cells that run, and ends.

Sessions stay with their executors, so what takes too long is not lost either: it runs on, and its outputs come with the
next gateway. A gateway that can be drained holds a lock on a small file in the runtime directory, named by its port;
`sharedkernel gateway --drain` asks whoever holds it, by a signal, and waits for the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sharedkernel.errors import ConfigError

if TYPE_CHECKING:
    from sharedkernel.gateway.kernel import SessionKernel
    from sharedkernel.gateway.kernels import SessionKernels

#: what asks a gateway to drain
DRAIN_SIGNAL = signal.SIGUSR1
#: seconds between looks at what still runs
_INTERVAL = 0.1


class Presence:
    """Says that this process is the gateway at a port; gone with the process, whatever becomes of that.

    Parameters
    ----------
    runtime_directory, port
        Where it serves.
    """

    def __init__(self, runtime_directory: Path, port: int) -> None:
        self._path = _path(runtime_directory, port)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Nobody else listens on this port, so whoever still holds the lock is just ending.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def end(self) -> None:
        """Say no longer so."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def ask_to_drain(runtime_directory: Path, port: int) -> None:
    """Ask the gateway at *port* to drain; returns once it has ended.

    Raises
    ------
    ConfigError
        When there is none.
    """
    path = _path(runtime_directory, port)
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
            os.kill(int(os.pread(descriptor, 32, 0)), DRAIN_SIGNAL)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        else:
            raise missing
    except (OSError, ValueError) as error:
        raise ConfigError(f"the gateway at port {port} cannot be asked to drain ({error}).") from None
    finally:
        os.close(descriptor)


def _path(runtime_directory: Path, port: int) -> Path:
    return runtime_directory / f"gateway-{port}.lock"


async def until_cells_end(manager: SessionKernels, seconds: float) -> list[str]:
    """Wait until every kernel that is busy now has been idle, or is another process or gone, or *seconds* are over.

    Parameters
    ----------
    manager
        Knows the kernels; they may change meanwhile.
    seconds
        0: for ever.

    Returns
    -------
    The ids of those whose cells still run.
    """
    running = {name: kernel.incarnation for name, kernel in _busy(manager).items()}
    deadline = asyncio.get_running_loop().time() + seconds
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        busy = _busy(manager)
        for name, incarnation in list(running.items()):
            if name not in busy or busy[name].incarnation != incarnation:
                del running[name]
    return list(running)


def _busy(manager: SessionKernels) -> dict[str, SessionKernel]:
    kernels = {name: cast("SessionKernel", manager.get_kernel(name)) for name in manager.list_kernel_ids()}
    return {name: kernel for name, kernel in kernels.items() if kernel.execution_state == "busy"}
