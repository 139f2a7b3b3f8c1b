"""What gateways ask an executor about users' shelves, as a part of its client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sharedkernel import protocol

#: bytes of a part that is written: a request is no longer than :data:`~sharedkernel.protocol.MAX_MESSAGE_BYTES`
WRITTEN_PART_BYTES = 512 << 10


class ShelfCalls(ABC):
    """Requests about shelves.

    All of them raise :class:`~sharedkernel.errors.Refused` when the executor is of an earlier version.
    """

    @abstractmethod
    async def _ask(self, request: protocol.ControlRequest) -> Any:
        """Return the executor's answer."""

    async def shelves(self, user: str | None = None) -> list[protocol.UserShelf]:
        """Return what is on the shelf of *user*, or on everybody's; only shelves that anything is charged for."""
        answer = await self._ask(protocol.ListShelves(user=user))
        shelves: list[protocol.UserShelf] = answer.shelves
        return shelves

    async def take_off_shelf(
        self, user: str, name: str | None = None, number: int | None = None
    ) -> protocol.TakenOffShelf:
        """Take *name*, or everything, off the shelf of *user*; sessions that use it keep it.

        Parameters
        ----------
        user, name
            Of whose shelf, and what.
        number
            Only what has this number, and only if no session uses it.

        Raises
        ------
        Refused
            When there is nothing of that name, or nothing at all.
        """
        answer: protocol.TakenOffShelf = await self._ask(protocol.TakeOffShelf(user=user, name=name, number=number))
        return answer

    async def read_shelf(
        self, user: str, name: str, *, offset: int, length: int, number: int | None = None
    ) -> protocol.ShelfPart:
        """Return a part of what is on the shelf of *user* under *name*.

        Parameters
        ----------
        user, name
            Of whose shelf, and what.
        offset, length
            Where the part begins, and how long it is at most, bytes.
        number
            Only of what has this number; None: whatever it is.

        Raises
        ------
        Refused
            When there is no such thing, or a session uses it.
        """
        part: protocol.ShelfPart = await self._ask(
            protocol.ReadShelf(user=user, name=name, offset=offset, length=length, number=number)
        )
        return part

    async def write_shelf(self, user: str, name: str, *, part: bytes, offset: int, total: int, at: float) -> None:
        """Write a part of a new entry *name* on the shelf of *user*.

        Parameters
        ----------
        user, name
            Of whose shelf, and as what.
        part, offset
            At most :data:`WRITTEN_PART_BYTES`, and where they begin; 0 begins anew.
        total
            Bytes in all; with the last of them it is on the shelf.
        at
            When it was shelved, seconds since 1970.

        Raises
        ------
        SharedKernelError
            When the name is taken (reason ``arrived``, after the last part: by the same bytes), there is no room, or
            the part is not the next one.
        """
        await self._ask(
            protocol.WriteShelf(user=user, name=name, data=part, offset=offset, total_bytes=total, shelved_at=at)
        )
