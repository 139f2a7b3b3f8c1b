"""The sessions and shelves of a class's users: which its end concerns, and how they are told, ended and cleared."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tornado.web import HTTPError

from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.classroom.record import ClassRecord
from sharedkernel.gateway.http.shelf_handlers import list_shelves
from sharedkernel.gateway.kernels.detached import EarlierSession
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.manager import SessionKernels

log = logging.getLogger(__name__)

#: seconds that one session may take to be told or ended, and how many are at a time
_TIMEOUT, _AT_ONCE = 60.0, 8
#: seconds after which sessions that are still being started are left to the next try
_PATIENCE = 60.0
_FAREWELL = "This session was ended: the class is over."


class ClassSessions:
    """The sessions of a class.

    Parameters
    ----------
    manager
        Has all sessions.
    audit_log
        Records which were ended.
    """

    def __init__(self, manager: SessionKernels, audit_log: AuditLog) -> None:
        self._manager = manager
        self._audit_log = audit_log

    def kernels(self, record: ClassRecord) -> list[SessionKernel]:
        """Return the kernels that the class's end concerns: those that have come since it began."""
        kernels = self._manager.registry.all()
        return [kernel for kernel in kernels if kernel.user in record.members and kernel.kernel_id not in record.spared]

    def _detached(self, record: ClassRecord) -> list[EarlierSession]:
        found = (earlier for user in record.members for earlier in self._manager.detached.of_user(user))
        return [earlier for earlier in found if earlier.session not in record.spared]

    def count(self, record: ClassRecord) -> Counter[str]:
        """Return how many sessions each user of the class has."""
        counts = Counter(kernel.user for kernel in self.kernels(record))
        counts.update(earlier.user for earlier in self._detached(record))
        return counts

    def of_users(self, users: set[str]) -> list[str]:
        """Return the ids of all sessions that *users* have now."""
        kernels = [str(kernel.kernel_id) for kernel in self._manager.registry.all() if kernel.user in users]
        return kernels + [earlier.session for user in users for earlier in self._manager.detached.of_user(user)]

    async def known_users(self) -> set[str] | None:
        """Return who has a session or something on a shelf; None: a device that may have more does not answer."""
        manager = self._manager
        try:
            found = await list_shelves(manager.executors, None)
        except SharedKernelError:
            return None
        if found["away"]:
            return None
        return manager.registry.owners() | manager.detached.owners() | {shelf["user"] for shelf in found["shelves"]}

    async def clear_shelves(self, record: ClassRecord) -> bool:
        """Take off what new users have put on their shelves in the class; return whether no device is left to clear.

        The next class may have others of these names.
        """
        since = {
            user: member.new_since.timestamp()
            for user, member in record.members.items()
            if member.new_since is not None and member.joined is not None
        }
        executors = self._manager.executors
        # One that this gateway has never reached has no session of the class either.
        devices = [name for name in executors if executors[name].device is not None] if since else []
        return all(await asyncio.gather(*(self._clear(device, since) for device in devices)))

    async def _clear(self, device: str, since: Mapping[str, float]) -> bool:
        """Clear the shelves on one device of what came *since* then, in seconds since 1970, by user."""
        executor = self._manager.executors[device]
        try:
            async with asyncio.timeout(_TIMEOUT):
                for shelf in await executor.shelves():
                    first = since.get(shelf.user, math.inf)
                    for name in [entry.name for entry in shelf.entries if entry.shelved_at >= first]:
                        with contextlib.suppress(Refused):  # somebody else has taken it off
                            await executor.take_off_shelf(shelf.user, name)
                            self._audit_log.record("clear class shelf", user=shelf.user, name=name)
        except (SharedKernelError, TimeoutError) as error:
            log.info("shelves of the class: %s", str(error) or f"no answer in {_TIMEOUT:g} s")
            return False
        return True

    def num_left(self, record: ClassRecord) -> int | None:
        """Return how many sessions the class has; None if an executor that is away may have more."""
        if any(self._manager.registry.awaited_by(user) for user in record.members):
            return None
        return self.count(record).total()

    async def tell(self, kernel_ids: Sequence[str], sentence: str, record: ClassRecord) -> None:
        """Show *sentence* in the notebooks of these sessions of *record*'s class, and whose shelf is cleared, too."""

        async def tell(kernel_id: str) -> None:
            if (kernel := self._manager.registry.find(kernel_id)) is not None:
                is_new = record.members[kernel.user].new_since is not None
                await kernel.notify(f"{sentence} Your shelf is cleared." if is_new else sentence)

        await self._on_each(kernel_ids, tell)

    async def end(self, record: ClassRecord) -> int:
        """End the class's sessions, those too that are being started; return how many were ended."""
        ended, deadline = 0, asyncio.get_running_loop().time() + _PATIENCE
        while True:
            before = set(self._names(record))
            await self._on_each([str(kernel.kernel_id) for kernel in self.kernels(record)], self._end_kernel)
            await self._on_each([earlier.session for earlier in self._detached(record)], self._end_detached)
            gone = before.difference(self._names(record))
            for name in gone:
                self._audit_log.record("end class session", session=name)
            ended += len(gone)
            is_starting = not record.members.keys().isdisjoint(self._manager.starter.users())
            if not (gone or is_starting) or asyncio.get_running_loop().time() > deadline:
                return ended
            await asyncio.sleep(0.1)

    def _names(self, record: ClassRecord) -> list[str]:
        kernels = [str(kernel.kernel_id) for kernel in self.kernels(record)]
        return kernels + [earlier.session for earlier in self._detached(record)]

    async def _end_kernel(self, kernel_id: str) -> None:
        await self._manager.shut_down(kernel_id, linger=0, farewell=_FAREWELL)

    async def _end_detached(self, session: str) -> None:
        await self._manager.shut_down(session, linger=0)

    async def _on_each(self, sessions: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do *work* on sessions, some at a time; one that fails or hangs is logged."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(session: str) -> None:
            try:
                async with turns, asyncio.timeout(_TIMEOUT):
                    await work(session)
            except (SharedKernelError, HTTPError, TimeoutError) as error:
                log.info("session %s of the class: %s", session, str(error) or f"no answer in {_TIMEOUT:g} s")

        await asyncio.gather(*map(one, sessions))
