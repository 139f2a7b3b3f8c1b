"""The sessions and shelves that a class's end concerns: how they are notified, ended and cleared."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.config.classes import ClassRecord
from sharedkernel.gateway.fleet.executors import ONLY
from sharedkernel.gateway.http.shelf_handlers import list_shelves, take_off
from sharedkernel.gateway.kernels.culling import succeeds
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.protocol import TakenOffShelf

log = logging.getLogger(__name__)

#: sessions that are notified or ended at a time
_AT_ONCE = 8
#: seconds after which sessions that are still being started are left to the next try
_PATIENCE = 60.0
_FAREWELL = "This session was ended: the class is over."


class ClassSessions:
    """The sessions of classes.

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

    def of_users(self, users: Collection[str]) -> dict[str, str]:
        """Return the sessions of *users*, those that are detached included: the users by id."""
        manager = self._manager
        found = {str(kernel.kernel_id): kernel.user for kernel in manager.registry.all() if kernel.user in users}
        return found | {earlier.session: user for user in users for earlier in manager.detached.of_user(user)}

    def of_class(self, record: ClassRecord) -> dict[str, str]:
        """Return the sessions that end with a class, those that have come since it began: the users by id."""
        found = self.of_users(record.members.keys())
        return {session: user for session, user in found.items() if session not in record.spared}

    async def known_users(self) -> tuple[set[str], bool]:
        """Return who has a session or something on a shelf, and whether all devices have answered."""
        manager = self._manager
        try:
            found = await list_shelves(manager.executors, None)
        except SharedKernelError:
            found = {"shelves": [], "away": True}
        owners = manager.registry.owners() | manager.detached.owners()
        return owners | {shelf["user"] for shelf in found["shelves"]}, not found["away"]

    async def notify(self, sessions: Collection[str], sentence: str, record: ClassRecord) -> None:
        """Show *sentence* in the notebooks of these sessions of a class; new users also that their shelf is cleared."""

        async def notify(session: str) -> None:
            if (kernel := self._manager.registry.find(session)) is not None:
                is_new = record.members[kernel.user].is_new
                await kernel.notify(f"{sentence} Your shelf is cleared." if is_new else sentence)

        await self._on_each(sessions, notify)

    async def end(self, record: ClassRecord) -> int:
        """End the class's sessions, also those that are being started; return how many were ended."""
        ended, deadline = 0, asyncio.get_running_loop().time() + _PATIENCE
        while True:
            before = self.of_class(record).keys()
            await self._on_each(before, lambda session: self._manager.shut_down(session, linger=0, farewell=_FAREWELL))
            gone = before - self.of_class(record).keys()
            for session in gone:
                self._audit_log.record("end class session", session=session)
            ended += len(gone)
            is_starting = not record.members.keys().isdisjoint(self._manager.starter.users())
            if not (gone or is_starting) or asyncio.get_running_loop().time() > deadline:
                return ended
            await asyncio.sleep(0.1)

    def num_left(self, record: ClassRecord) -> int | None:
        """Return how many sessions the class has; None if an executor that is away may have more."""
        if any(map(self._manager.registry.owners_file.awaited_by, record.members)):
            return None
        return len(self.of_class(record))

    async def clear_shelves(self, record: ClassRecord) -> bool:
        """Take everything off the shelves of new users who have joined; return whether no device is left to clear.

        The next class may have others of these names.
        """
        users = {user for user, member in record.members.items() if member.is_new and member.joined is not None}
        if not users:
            return True
        executors = self._manager.executors
        try:
            found = await list_shelves(executors, None)
            for shelf in found["shelves"]:
                if shelf["user"] in users and shelf["entries"]:
                    taken: dict[str, TakenOffShelf] = {}
                    await take_off(executors, shelf["user"], None, [shelf["device"] or ONLY], taken)
                    self._audit_log.record("clear class shelf", user=shelf["user"])
        except SharedKernelError as error:
            log.info("shelves of the class: %s", error)
            return False
        return not found["away"]

    async def _on_each(self, sessions: Collection[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do *work* on sessions, some at a time; one that fails or hangs is logged."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(session: str) -> None:
            async with turns:
                await succeeds(work(session), f"session {session} of the class")

        await asyncio.gather(*map(one, sessions))
