"""An executor's connections to its warm parents, one for each environment that was ever used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.environments import OWN, Environment
from sharedkernel.executor.launch import reach, wait_for_end
from sharedkernel.executor.packets import PacketSocket, connect
from sharedkernel.paths import EXECUTOR_SOCKET, LOGS_DIRECTORY


class WarmParents:
    """Starts warm parents when they are first needed, and hears what they say.

    Parameters
    ----------
    directory
        Where they listen.
    environments
        All there are, by name.
    on_message
        Called with each :class:`~sharedkernel.protocol.Forked` and :class:`~sharedkernel.protocol.Exited`.
    on_gone
        Called with the name of an environment whose warm parent ended.
    """

    def __init__(
        self,
        directory: Path,
        environments: Mapping[str, Environment],
        *,
        on_message: Callable[[Any], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._environments = environments
        self._on_message = on_message
        self._on_gone = on_gone
        #: by the names of their sockets
        self._open: dict[str, PacketSocket] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    def open_environments(self) -> list[str]:
        """Return the names of the environments whose warm parents are there."""
        return [name for name, environment in self._environments.items() if environment.socket in self._open]

    def is_open(self, name: str) -> bool:
        """Whether the warm parent of the environment *name* is there to tell how its sessions end."""
        environment = self._environments.get(name)
        return environment is not None and environment.socket in self._open

    async def start(self) -> None:
        """Start or reach that of the executor's own environment, and reach the others that an executor left."""
        await self._open_one(self._environments[OWN])
        for environment in self._environments.values():
            if environment.socket not in self._open:
                with contextlib.suppress(OSError):
                    path = str(self._directory / environment.socket)
                    self._add(environment, connect(path, protocol.FromWarmParent))

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
        self._open[environment.socket].send(message, [page])

    def close(self, *, quit_too: bool) -> None:
        """Let go of all of them; with *quit_too* they end first, and what is left of their sessions with them."""
        if quit_too:
            for parent in self._open.values():
                with contextlib.suppress(OSError):
                    parent.send(protocol.Quit())
        for parent in self._open.values():
            asyncio.get_running_loop().remove_reader(parent)
            if quit_too:
                wait_for_end(parent)
            parent.close()
        self._open.clear()

    async def _open_one(self, environment: Environment) -> None:
        connection = await reach(
            self._directory / environment.socket,
            "sharedkernel.executor.warm_parent",
            [str(self._directory / EXECUTOR_SOCKET)],
            protocol.FromWarmParent,
            log_path=self._directory
            / LOGS_DIRECTORY
            / f"{Path(environment.socket).stem.replace('warm', 'warm_parent')}.log",
            python=environment.python,
        )
        self._add(environment, connection)

    def _add(self, environment: Environment, connection: PacketSocket) -> None:
        self._open[environment.socket] = connection
        asyncio.get_running_loop().add_reader(connection, partial(self._hear, environment, connection))

    def _hear(self, environment: Environment, connection: PacketSocket) -> None:
        message, _ = connection.receive()
        if message is None:
            asyncio.get_running_loop().remove_reader(connection)
            connection.close()
            del self._open[environment.socket]
            self._on_gone(environment.name)
            return
        if isinstance(message, protocol.Exited):
            connection.send(protocol.ExitedSeen(process=message.process))
        self._on_message(message)
