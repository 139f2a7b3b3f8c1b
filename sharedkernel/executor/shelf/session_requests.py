"""The requests of sessions about their users' shelves, over the descriptor socket (`ipc/fd_server.py`)."""

from __future__ import annotations

from sharedkernel import protocol
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.shelf.store import ShelfStore
from sharedkernel.ipc.fd_server import FdHandler, FdReply


class ShelfRequests:
    """Answers the messages that are about shelves.

    Parameters
    ----------
    store
        The shelves.
    """

    def __init__(self, store: ShelfStore) -> None:
        self._store = store

    def handlers(self) -> dict[type[protocol.Message], FdHandler[SessionHandle]]:
        """Return what answers each of them."""
        return {
            protocol.ReserveShelf: self._reserve,
            protocol.Shelve: self._shelve,
            protocol.FetchShelved: self._fetch,
            protocol.Unshelve: self._unshelve,
            protocol.ListShelf: self._list,
        }

    async def _reserve(self, process: SessionHandle, message: protocol.ReserveShelf, _: list[int]) -> FdReply:
        number, descriptor = await self._store.reserve(_user(process), message.name, max(0, message.bytes))
        return FdReply(protocol.ShelfReserved(request=message.request, number=number), [descriptor])

    def _shelve(self, process: SessionHandle, message: protocol.Shelve, _: list[int]) -> FdReply:
        self._store.put(_user(process), message.number)
        return FdReply(protocol.Done(request=message.request))

    def _fetch(self, process: SessionHandle, message: protocol.FetchShelved, _: list[int]) -> FdReply:
        size, descriptor = self._store.lend(_user(process), message.name)
        return FdReply(protocol.Shelved(request=message.request, bytes=size), [descriptor])

    def _unshelve(self, process: SessionHandle, message: protocol.Unshelve, _: list[int]) -> FdReply:
        user = _user(process)
        self._store.find(user, message.name)
        self._store.take_off(user, message.name)
        return FdReply(protocol.Done(request=message.request))

    def _list(self, process: SessionHandle, message: protocol.ListShelf, _: list[int]) -> FdReply:
        user = _user(process)
        self._store.look(user)
        shelf = self._store.listing(user)
        listing = protocol.ShelfListing(
            request=message.request,
            entries=shelf.entries,
            charged_bytes=shelf.charged_bytes,
            left_bytes=self._store.room(user).left,
        )
        return FdReply(listing)


def _user(process: SessionHandle) -> str:
    assert process.user is not None
    return process.user
