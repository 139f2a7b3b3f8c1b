"""The requests of gateways about users' shelves, as a part of its client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sharedkernel import protocol


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

    async def take_off_shelf(self, user: str, name: str | None = None) -> protocol.TakenOffShelf:
        """Take *name*, or everything, off the shelf of *user*; sessions that use it keep it.

        Raises
        ------
        Refused
            When there is nothing of that name, or nothing at all.
        """
        answer: protocol.TakenOffShelf = await self._ask(protocol.TakeOffShelf(user=user, name=name))
        return answer
