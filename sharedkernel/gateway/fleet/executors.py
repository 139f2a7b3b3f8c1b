"""Connections to the executors: one, or one for each of several devices of this host.

If the configuration names no devices, there is one executor, of any device, and its status document is used as it is.
Otherwise each executor has a runtime directory that follows from its device's name (`paths.py`), a session stays on the
executor that started it, and an executor that is away affects its own sessions only.

Covers which executors there are, their status, and which one gets a new session; `kernels/registry.py` has the
sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sharedkernel.errors import ConfigError, ExecutorUnavailable, SharedKernelError
from sharedkernel.gateway.fleet.merged_status import away_entry, merge
from sharedkernel.gateway.fleet.placement import NotebookHistory, choose, shelf_owners
from sharedkernel.ipc.executor_client import ELSEWHERE, ExecutorClient
from sharedkernel.paths import LONGEST_RUNTIME_DIRECTORY, device_directory
from sharedkernel.protocol import SessionDied
from sharedkernel.status.document import StatusDocument

_Answer = TypeVar("_Answer")

#: name of the only executor, where the configuration names none
ONLY = ""
#: seconds to wait for the status of each of several executors
_STATUS_TIMEOUT = 2.0
#: seconds to wait for that of the only one
_ONLY_TIMEOUT = 10.0
#: seconds that a new session waits for an executor that no other can replace: the first one to answer if none does, as
#: on a busy machine, or the one with its user's shelf
_PLACEMENT_TIMEOUT = 20.0


class Executors:
    """Connections to all executors, by the names of their devices.

    Parameters
    ----------
    runtime_directory
        Directory in which the gateway meets the executors.
    devices
        Names of their devices, from the configuration; none: the only executor is called :data:`ONLY`.
    placement
        Rule that chooses the device of a new session; may be replaced.
    on_died, on_connected, on_earlier_wanted
        Called on the event loop with the device's name and the report; see
        :class:`~sharedkernel.ipc.executor_client.ExecutorClient`.

    Raises
    ------
    ConfigError
        When the runtime directory's path is too long for one of the devices.
    """

    def __init__(
        self,
        runtime_directory: Path,
        devices: Sequence[str],
        placement: str,
        *,
        on_died: Callable[[str, SessionDied], None],
        on_connected: Callable[[str], None],
        on_earlier_wanted: Callable[[str, str, int], None],
    ) -> None:
        for directory in (device_directory(runtime_directory, device) for device in devices):
            if len(os.fsencode(directory)) > LONGEST_RUNTIME_DIRECTORY:
                raise ConfigError(
                    f"{directory} is too long a path for sockets; name a shorter --runtime-dir, so that it has at most "
                    f"{LONGEST_RUNTIME_DIRECTORY} characters."
                )
        self.placement = placement
        self._clients = {
            name: ExecutorClient(
                runtime_directory,
                served=name or None,
                role="gateway",
                on_died=partial(on_died, name),
                on_connected=partial(on_connected, name),
                on_earlier_wanted=partial(on_earlier_wanted, name),
            )
            for name in devices or (ONLY,)
        }
        self._history = NotebookHistory()
        #: names of users with entries on each device's shelf, at its last answer
        self._shelf_owners: dict[str, set[str]] = {}
        #: tasks that end at the next change, by device
        self._changes: dict[str, asyncio.Task[None]] = {}

    @property
    def several(self) -> bool:
        """Whether there is more than one executor."""
        return len(self._clients) > 1

    def __getitem__(self, name: str) -> ExecutorClient:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def connected(self) -> list[str]:
        """Return the devices whose executors are connected."""
        return [name for name, client in self._clients.items() if client.connected]

    def silent(self) -> list[str]:
        """Return the devices whose executors are connected and do not answer."""
        return [name for name in self.connected() if not self._clients[name].is_answering]

    def absences(self) -> list[str]:
        """Return a sentence for each executor that is not connected, for administrators."""
        return [client.absence() for client in self._clients.values() if not client.connected]

    def environments(self) -> list[str]:
        """Return the Python environments of all executors, besides their own."""
        return sorted({name for client in self._clients.values() for name in client.environments})

    def describe(self, names: Collection[str]) -> str:
        """Return a phrase for the executors of these devices."""
        if not self.several:
            return f"the executor ({next(iter(self._clients.values())).path})"
        return f"the executor{'s' * (len(names) != 1)} of {', '.join(names)}"

    def keep_connected(self) -> None:
        """Connect to all executors, and again whenever one comes back."""
        for client in self._clients.values():
            client.keep_connected()

    async def close(self) -> None:
        """Disconnect from all executors."""
        for client in self._clients.values():
            await client.close()
        for change in self._changes.values():
            change.cancel()

    # --- status -------------------------------------------------------------------------------------------------------

    async def status(self, count_sessions: Callable[[str], int]) -> StatusDocument:
        """Return the status document of all devices, nothing hidden.

        Parameters
        ----------
        count_sessions
            Returns the number of known sessions on a device; called for devices whose executor does not answer.

        Raises
        ------
        ExecutorUnavailable
            When no executor answers.
        """
        if not self.several:
            return await self._only_status()
        documents = await self.documents()
        if not documents:
            raise self.unavailable()
        away = {
            name: away_entry(name, client.device, count_sessions(name), self._why_away(name))
            for name, client in self._clients.items()
            if name not in documents
        }
        return merge(documents, away, list(self._clients), self.placement)

    async def _only_status(self) -> StatusDocument:
        [(name, client)] = self._clients.items()
        if not self.silent():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ONLY_TIMEOUT):
                    return await client.status()
        raise ExecutorUnavailable(self._why_away(name), since=client.away_since)

    async def documents(self) -> dict[str, StatusDocument]:
        """Return the status document of each executor that answers in time, by device, in the configuration's order."""
        # Callers never share an answer: a caller that has changed something must see the change.
        return await self._ask([name for name in self.connected() if self._clients[name].is_answering], _STATUS_TIMEOUT)

    async def _ask(self, names: Iterable[str], seconds: float) -> dict[str, StatusDocument]:
        documents, _ = await ask_each(self, names, ExecutorClient.status, seconds=seconds)
        for name, document in documents.items():
            self._history.observe(name, document)
            self._shelf_owners[name] = shelf_owners(document)
        return documents

    async def wait_for_change(self, seconds: float) -> None:
        """Return at the first change since the last call, on any device, and no later than after *seconds*.

        Sessions' states, lanes, limits and the executors that answer count as changes; figures alone do not.
        """
        self._listen()
        if not self._changes:
            await asyncio.sleep(seconds)
            return
        await asyncio.wait(self._changes.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for name in [name for name, change in self._changes.items() if change.done()]:
            with contextlib.suppress(SharedKernelError):
                self._changes.pop(name).result()
        self._listen()  # now, so that a change while the caller asks for the status is a change after it

    def _listen(self) -> None:
        for name in self.connected():
            if name not in self._changes:
                self._changes[name] = asyncio.create_task(self._clients[name].wait_for_change())

    def _why_away(self, name: str) -> str:
        client = self._clients[name]
        if client.connected:
            return f"{self.describe([name])} is there and does not answer; its log may say why, and {ELSEWHERE}."
        return str(client.unavailable())

    def unavailable(self) -> ExecutorUnavailable:
        """Return an error that says that no executor answers."""
        if not self.several:
            return next(iter(self._clients.values())).unavailable()
        since = [client.away_since for client in self._clients.values()]
        return ExecutorUnavailable(
            f"none of {self.describe(self._clients)} answers; start one with `sharedkernel executor --device NAME`, "
            f"or wait for them; {ELSEWHERE}.",
            since=max((moment for moment in since if moment is not None), default=None),
        )

    # --- placement ----------------------------------------------------------------------------------------------------

    async def place(
        self, user: str, notebook: str | None, *, count_in_use: Callable[[str], int], without: Collection[str]
    ) -> str:
        """Return the device for a new session.

        Parameters
        ----------
        user, notebook
            The session's user, and the path of its notebook if there is one.
        count_in_use
            Returns the number of sessions in use or starting on a device; called after the last await.
        without
            Devices that have refused.

        Raises
        ------
        ExecutorUnavailable
            When no other executor answers.
        """
        if not self.several:
            if without:
                raise self.unavailable()
            return next(iter(self._clients))
        documents = {name: found for name, found in (await self.documents()).items() if name not in without}
        late = set(self.connected()).difference(without, documents)
        has_shelf = {name for name in late if user in self._shelf_owners.get(name, ())}
        if late and (has_shelf or not documents):
            documents |= await self._wait_for_any(has_shelf or late)
        if not documents:
            raise self.unavailable()
        # A shelf's entries can be used on its device only, which matters more than load.
        documents = {name: found for name, found in documents.items() if user in shelf_owners(found)} or documents
        demand = self._history.demand(user, notebook, documents)
        return choose(self.placement, demand, documents, {name: count_in_use(name) for name in documents})

    async def _wait_for_any(self, names: Collection[str]) -> dict[str, StatusDocument]:
        """Return the status document of that of *names* which answers first; none after the timeout."""
        for asked in asyncio.as_completed([self._ask([name], _PLACEMENT_TIMEOUT) for name in names]):
            if documents := await asked:
                return documents
        return {}


def no_answer(executors: Executors, name: str, what: str = "does not answer") -> ExecutorUnavailable:
    """Return an error that says *what* one executor does."""
    return ExecutorUnavailable(f"{executors.describe([name])} {what}; its log may say why.")


async def ask_each(
    executors: Executors, names: Iterable[str], ask: Callable[[ExecutorClient], Awaitable[_Answer]], *, seconds: float
) -> tuple[dict[str, _Answer], dict[str, SharedKernelError]]:
    """Ask several executors at once.

    Parameters
    ----------
    executors
        All of them.
    names
        Those to ask.
    ask
        Asks one.
    seconds
        Time that each may take to answer.

    Returns
    -------
    answers, away
        Each answer, and why there is none of the others.
    """

    async def one(name: str) -> _Answer | SharedKernelError:
        try:
            async with asyncio.timeout(seconds):
                return await ask(executors[name])
        except TimeoutError:
            return no_answer(executors, name)
        except SharedKernelError as error:
            return error

    names = list(names)
    found = dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))
    away = {name: answer for name, answer in found.items() if isinstance(answer, SharedKernelError)}
    return {name: answer for name, answer in found.items() if not isinstance(answer, SharedKernelError)}, away
