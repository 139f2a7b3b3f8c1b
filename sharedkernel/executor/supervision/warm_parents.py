"""An executor's connections to its warm parents, one for each environment that was ever used.

A warm parent from before an upgrade has the old code imported, so it forks no more sessions: they would mix old and new
code. Another one takes its place, and it retires: it only reports how its sessions end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, ExecutorUnavailable
from sharedkernel.executor.supervision.environments import OWN, Environment, listener_of, process_build_id
from sharedkernel.ipc.helper_process import PATIENCE, kill_peer, scrubbed_environment, wait_for_end
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.paths import EXECUTOR_SOCKET, LOGS_DIRECTORY, RETIRED_SOCKETS
from sharedkernel.system.atomic_file import closing_descriptor

log = logging.getLogger(__name__)

#: run by the environment's interpreter
_MODULE = "sharedkernel.executor.supervision.warm_parent"
#: seconds to wait for one to listen
_START_TIMEOUT = 30.0
#: seconds from a request to fork to its answer, of a new warm parent: it imports torch first
_FIRST_PATIENCE = 50.0


class WarmParents:
    """Starts warm parents when they are first needed, and handles their messages.

    Parameters
    ----------
    directory
        Where they listen.
    environments
        All there are, by name.
    on_message
        Called with each message of :data:`~sharedkernel.protocol.FromWarmParent`.
    on_gone
        Called with the name of an environment whose warm parent ended.
    patience
        Seconds that one which has answered before may take to answer, or to end; one that takes longer is killed.
    """

    def __init__(
        self,
        directory: Path,
        environments: Mapping[str, Environment],
        *,
        on_message: Callable[[Any], None],
        on_gone: Callable[[str], None],
        patience: float = PATIENCE,
    ) -> None:
        self._directory = directory
        self._environments = environments
        self._on_message = on_message
        self._on_gone = on_gone
        self._patience = patience
        #: by the names of their sockets
        self._open: dict[str, PacketSocket] = {}
        #: those that retire, by the paths of theirs
        self._retired: dict[Path, PacketSocket] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        #: what ends a warm parent unless it answers, by the process that it is to fork
        self._unanswered: dict[str, asyncio.TimerHandle] = {}
        #: those that have answered
        self._answering: WeakSet[PacketSocket] = WeakSet()

    def open_environments(self) -> list[str]:
        """Return the names of the environments whose warm parents are there."""
        return [name for name, environment in self._environments.items() if environment.socket in self._open]

    def is_open(self, name: str) -> bool:
        """Whether the warm parent of the environment *name* is there to tell how its sessions end."""
        environment = self._environments.get(name)
        return environment is not None and (environment.socket in self._open or bool(self._retired))

    async def start(self) -> None:
        """Start or reach that of the executor's own environment, and reach the others that an executor left."""
        for environment in self._environments.values():
            self._reach_left(environment)
        for path in self._directory.glob(RETIRED_SOCKETS):
            self._reach_retired(path)
        if OWN not in self.open_environments():
            await self._open_one(self._environments[OWN])

    def _reach_left(self, environment: Environment) -> None:
        """Connect to the warm parent that an executor left, or have it retire if that was one of other code."""
        path = self._directory / environment.socket
        with contextlib.suppress(OSError):
            pid = listener_of(path)
            if process_build_id(pid) == environment.build_id:
                self._add(environment, connect(str(path), protocol.FromWarmParent))
            else:
                log.info("the code has changed: warm parent %d forks no more, and ends with its last session", pid)
                path.rename(self._directory / RETIRED_SOCKETS.replace("*", str(pid)))

    def _reach_retired(self, path: Path) -> None:
        """Connect to a warm parent that has given up its place; if it is gone, forget it."""
        try:
            connection = connect(str(path), protocol.FromWarmParent)
            connection.send(protocol.Retire())  # again: who gave it another name may have been killed before it said so
        except OSError:
            path.unlink(missing_ok=True)
            return
        self._retired[path] = connection
        self._listen(connection, partial(self._retired_gone, path))

    async def fork(self, name: str, message: protocol.Fork, page: int) -> None:
        """Have the warm parent of the environment *name* fork a session; *page* travels along.

        Raises
        ------
        OSError
            When it is gone.
        ExecutorUnavailable
            When it does not start.
        """
        environment = self._environments[name]
        async with self._opening.setdefault(environment.socket, asyncio.Lock()):
            if environment.socket not in self._open:
                await self._open_one(environment)
        parent = self._open[environment.socket]
        self._expect_answer(message.process, parent, self._patience if parent in self._answering else _FIRST_PATIENCE)
        try:
            parent.send(message, [page])
        except BlockingIOError:  # it has not read for a while
            self._kill(message.process, parent)

    def _expect_answer(self, process: str, parent: PacketSocket, patience: float) -> None:
        self._unanswered[process] = asyncio.get_running_loop().call_later(patience, self._time_out, process, parent)

    def _time_out(self, process: str, parent: PacketSocket) -> None:
        if parent.fileno() >= 0 and parent.has_message():  # this process was stopped itself, and has not read for long
            self._expect_answer(process, parent, self._patience)
        else:
            self._kill(process, parent)

    def _kill(self, process: str, parent: PacketSocket) -> None:
        """End a warm parent that does not answer: another one takes its place. Its sessions run on."""
        self._unanswered.pop(process).cancel()
        if parent.fileno() >= 0:  # it has not ended meanwhile
            log.error("the warm parent does not answer; ended it, and the next fork starts another")
            kill_peer(parent)

    def close(self, *, quit_too: bool) -> None:
        """Release all of them; with *quit_too* they end first, and what is left of their sessions with them."""
        parents = [*self._open.values(), *self._retired.values()]
        for timer in self._unanswered.values():
            timer.cancel()
        if quit_too:
            for parent in parents:
                with contextlib.suppress(OSError):
                    parent.send(protocol.Quit())
        for parent in parents:
            asyncio.get_running_loop().remove_reader(parent)
            if quit_too:
                wait_for_end(parent, self._patience)
            parent.close()
        if quit_too:
            for path in self._retired:
                path.unlink(missing_ok=True)
        self._open.clear()
        self._retired.clear()

    async def _open_one(self, environment: Environment) -> None:
        """Connect to the warm parent of an environment, and start it if nobody listens in its place.

        Raises
        ------
        ExecutorUnavailable
            When it does not start.
        ConfigError
            When its log cannot be written.
        """
        path = self._directory / environment.socket
        log_path = self._directory / LOGS_DIRECTORY / f"{path.stem.replace('warm', 'warm_parent')}.log"
        child: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                return self._add(environment, connect(str(path), protocol.FromWarmParent))
            except OSError:  # nobody listens there
                if child is None:
                    child = self._start_one(environment, path, log_path)
                elif child.poll() is not None or time.monotonic() > deadline:
                    raise ExecutorUnavailable(f"{_MODULE} did not start; see {log_path}.") from None
            await asyncio.sleep(0.01)

    def _start_one(self, environment: Environment, path: Path, log_path: Path) -> subprocess.Popen[bytes]:
        try:
            log_file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write the log {log_path}: {error.strerror}; free some space or name another --runtime-dir."
            ) from None
        executor_socket = str(self._directory / EXECUTOR_SOCKET)
        with closing_descriptor(log_file) as output:
            return subprocess.Popen(
                [environment.python, "-m", _MODULE, str(path), executor_socket, environment.build_id],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=scrubbed_environment(environment.python),
                cwd="/",
            )

    def _add(self, environment: Environment, connection: PacketSocket) -> None:
        self._open[environment.socket] = connection
        self._listen(connection, partial(self._open_gone, environment))

    def _open_gone(self, environment: Environment) -> None:
        del self._open[environment.socket]
        self._on_gone(environment.name)

    def _retired_gone(self, path: Path) -> None:
        del self._retired[path]
        path.unlink(missing_ok=True)

    def _listen(self, connection: PacketSocket, gone: Callable[[], None]) -> None:
        connection.set_timeout(0)
        asyncio.get_running_loop().add_reader(connection, self._receive, connection, gone)

    def _receive(self, connection: PacketSocket, gone: Callable[[], None]) -> None:
        message, _ = connection.receive()
        if message is None:
            asyncio.get_running_loop().remove_reader(connection)
            connection.close()
            return gone()
        if isinstance(message, protocol.Forked | protocol.NotForked):
            self._answering.add(connection)
            if (timer := self._unanswered.pop(message.process, None)) is not None:
                timer.cancel()
        if isinstance(message, protocol.Exited):
            with contextlib.suppress(OSError):  # gone since it said so
                connection.send(protocol.ExitedSeen(process=message.process))
        self._on_message(message)
