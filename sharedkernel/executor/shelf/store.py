"""The users' shelves on the executor's side: who has what under which name, and how much room there is.

What is shelved is a memory file that a session wrote; its size is sealed, and what is charged is that size, whatever
anybody says. This process holds a descriptor of it and so does the keeper: either may be killed, and the other still
has it. What is in the memory, nobody here looks at.

To shelve takes two steps, since writing takes a while: a session reserves room, writes, and hands the memory over. A
reservation is charged like memory, and is given back when its session's connection ends.

To replace a name or to take it off the shelf does not free what a session still has mapped, so that stays charged
until nobody uses it (`memory_files.py`).

This module covers what sessions say about shelves over the descriptor socket (`fd_server.py`), and what
gateways may do with them (`api.py`). The layout of what is shelved is :mod:`sharedkernel.shelf.layout`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.shelf.memory_files import is_in_use, lend, sealed_size, size_of
from sharedkernel.executor.shelf.room import Room
from sharedkernel.ipc.fd_server import FdHandler, FdReply

log = logging.getLogger(__name__)

#: what the keeper holds under a key that begins so belongs here
KEY_PREFIX = "shelf/"
#: names on one shelf at most, since each takes a descriptor; bytes of a name in UTF-8, so that a listing is one packet
MOST_NAMES, LONGEST_NAME = 256, 200
#: seconds between two looks at whether memory that was taken off a shelf is still in use
_LOOK_INTERVAL = 1.0


class NotShelved(SharedKernelError):
    """There is nothing of that name on the user's shelf."""

    reason = "not_shelved"


class KeptMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of memory, as the next executor needs to know it; its descriptor is kept with it."""

    #: a later one has a higher number
    number: int
    user: str
    name: str
    #: seconds since 1970
    shelved_at: float
    #: taken off the shelf, but still mapped
    is_off: bool = False


@dataclass(slots=True, eq=False)
class _Memory:
    kept: KeptMemory
    descriptor: int
    size: int


class ShelfStore:
    """All users' shelves.

    Parameters
    ----------
    send_to_keeper
        Sends a message with descriptors to the keeper.
    room
        Returns what more on a user's shelf has to fit into, given what it and all shelves are charged with, in bytes.
    on_change
        Called with a user and what that user's shelf is charged with, in bytes, whenever it has changed.
    """

    def __init__(
        self,
        send_to_keeper: Callable[[protocol.Put | protocol.Delete, list[int]], None],
        room: Callable[[str, int, int], Room],
        on_change: Callable[[str, int], None],
    ) -> None:
        self._send_to_keeper = send_to_keeper
        self._find_room = room
        self._on_change = on_change
        self._shelves: dict[str, dict[str, _Memory]] = {}
        #: taken off, still in use
        self._off: list[_Memory] = []
        #: reserved bytes by process and request
        self._reserved: dict[tuple[SessionHandle, int], tuple[str, int]] = {}
        self._number = 0
        self._look_due: asyncio.TimerHandle | None = None

    # --- from executor to executor ------------------------------------------------------------------------------------

    def adopt(self, data: bytes, descriptors: list[int]) -> bool:
        """Take over what the keeper held for an earlier executor; False if it cannot be read."""
        try:
            kept = msgspec.msgpack.decode(data, type=KeptMemory)
            if not descriptors:
                raise ValueError("its memory is missing")
        except ValueError as error:  # msgspec's own are of this kind
            log.error("the keeper held something for a shelf that cannot be read: %s", error)
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        memory = _Memory(kept, descriptors[0], size_of(descriptors[0]))
        self._number = max(self._number, kept.number)
        if kept.is_off:
            self._off.append(memory)
            return True
        shelf = self._shelves.setdefault(kept.user, {})
        other = shelf.get(kept.name)
        if other is not None:  # that executor ended after it had shelved the one and before it took the other off
            memory, older = sorted((memory, other), key=lambda each: each.kept.number, reverse=True)
            self._off.append(older)
        shelf[kept.name] = memory
        return True

    def start(self) -> None:
        """Go on with what was adopted."""
        for memory in self._off:
            self._mark_off(memory)
        for user in self._users():
            self._changed(user)
        self._look()

    def close(self) -> None:
        """Release everything; the keeper still has it."""
        if self._look_due is not None:
            self._look_due.cancel()
        for memory in [*self._on_shelves(), *self._off]:
            os.close(memory.descriptor)
        self._shelves.clear()
        self._off.clear()

    def _keep(self, memory: _Memory) -> None:
        put = protocol.Put(key=_key(memory), data=msgspec.msgpack.encode(memory.kept))
        self._send_to_keeper(put, [memory.descriptor])

    # --- figures ------------------------------------------------------------------------------------------------------

    def charged(self, user: str) -> int:
        """Return what *user*'s shelf is charged with: what is on it, off it but in use, and reserved; bytes."""
        return (
            _sum(self._shelves.get(user, {}).values())
            + _sum(memory for memory in self._off if memory.kept.user == user)
            + sum(size for owner, size in self._reserved.values() if owner == user)
        )

    def _charged_in_all(self) -> int:
        return _sum(self._on_shelves()) + _sum(self._off) + sum(size for _, size in self._reserved.values())

    def _on_shelves(self) -> list[_Memory]:
        return [memory for shelf in self._shelves.values() for memory in shelf.values()]

    def _room(self, user: str) -> Room:
        return self._find_room(user, self.charged(user), self._charged_in_all())

    def _changed(self, user: str) -> None:
        self._on_change(user, self.charged(user))

    # --- what sessions ask --------------------------------------------------------------------------------------------

    def handlers(self) -> dict[type[protocol.Message], FdHandler[SessionHandle]]:
        """Return what answers the messages that are about shelves."""
        return {
            protocol.ReserveShelf: self._reserve,
            protocol.WithdrawReservation: self._withdraw,
            protocol.Shelve: self._shelve,
            protocol.FetchShelved: self._fetch,
            protocol.Unshelve: self._unshelve,
            protocol.ListShelf: self._list,
        }

    def forget_reservations(self, process: SessionHandle) -> None:
        """Give back what *process* reserved."""
        for key in [key for key in self._reserved if key[0] is process]:
            user, _ = self._reserved.pop(key)
            self._changed(user)

    def _reserve(self, process: SessionHandle, message: protocol.ReserveShelf, _: list[int]) -> FdReply:
        user = _user(process)
        self._check_name(user, message.name)
        size = max(0, message.bytes)
        self._check_room(user, message.name, size)
        self._reserved[process, message.request] = (user, size)
        self._changed(user)
        return FdReply(protocol.Done(request=message.request))

    def _withdraw(self, process: SessionHandle, message: protocol.WithdrawReservation, _: list[int]) -> FdReply:
        user, size = self._reserved.pop((process, message.reservation), (_user(process), 0))
        if size:
            self._changed(user)
        return FdReply(protocol.Done(request=message.request))

    def _shelve(self, process: SessionHandle, message: protocol.Shelve, descriptors: list[int]) -> FdReply:
        user = _user(process)
        self._check_name(user, message.name)
        size = sealed_size(descriptors)
        _, reserved = self._reserved.get((process, message.reservation), (user, 0))
        # An executor that has just begun knows no reservation, and one that holds may be too small.
        self._check_room(user, message.name, size - reserved)
        self._reserved.pop((process, message.reservation), None)
        self._number += 1
        kept = KeptMemory(number=self._number, user=user, name=message.name, shelved_at=time.time())
        memory = _Memory(kept, os.dup(descriptors[0]), size)
        shelf = self._shelves.setdefault(user, {})
        older = shelf.get(message.name)
        shelf[message.name] = memory
        self._keep(memory)  # before the older one goes: there is never neither
        if older is not None:
            self._take_off(older)
        self._changed(user)
        return FdReply(protocol.Done(request=message.request))

    def _fetch(self, process: SessionHandle, message: protocol.FetchShelved, _: list[int]) -> FdReply:
        memory = self._find(process, message.name)
        return FdReply(protocol.Shelved(request=message.request, bytes=memory.size), [lend(memory.descriptor)])

    def _unshelve(self, process: SessionHandle, message: protocol.Unshelve, _: list[int]) -> FdReply:
        self._take_all_off([self._find(process, message.name)])
        return FdReply(protocol.Done(request=message.request))

    def _list(self, process: SessionHandle, message: protocol.ListShelf, _: list[int]) -> FdReply:
        user = _user(process)
        listing = protocol.ShelfListing(
            request=message.request,
            entries=_entries(self._memories(user)),
            charged_bytes=self.charged(user),
            left_bytes=self._room(user).left,
        )
        return FdReply(listing)

    def _find(self, process: SessionHandle, name: str) -> _Memory:
        memory = self._shelves.get(_user(process), {}).get(name)
        if memory is None:
            raise NotShelved(f"there is no {name!r} on your shelf; list(shelf) says what there is.")
        return memory

    def _check_name(self, user: str, name: str) -> None:
        if not 0 < len(name.encode()) <= LONGEST_NAME:
            text = f"a name on a shelf is 1 to {LONGEST_NAME} bytes long in UTF-8; choose another."
            raise Refused(text, reason="name")
        shelf = self._shelves.get(user, {})
        if name not in shelf and len(shelf) >= MOST_NAMES:
            raise Refused(
                f"a shelf holds at most {MOST_NAMES} names; shelve several things as one dict, or delete some.",
                reason="names",
            )
        if sum(memory.kept.user == user for memory in self._off) >= MOST_NAMES:
            raise Refused(
                f"{MOST_NAMES} values that were replaced or deleted are still in use; let go of some first (`del`).",
                reason="names",
            )

    def _check_room(self, user: str, name: str, size: int) -> None:
        older = self._shelves.get(user, {}).get(name)
        self._room(user).check(name, size, replaced=None if older is None else older.size)

    # --- what gateways ask --------------------------------------------------------------------------------------------

    def listings(self, user: str | None) -> list[protocol.UserShelf]:
        """Return the shelf of *user*, or everybody's (None), without those that nothing is charged for."""
        users = sorted(self._users()) if user is None else [user]
        return [self._listing(each) for each in users if self.charged(each)]

    def _users(self) -> set[str]:
        """Return everybody who may be charged for something."""
        off = {memory.kept.user for memory in self._off}
        return {*self._shelves, *off, *(user for user, _ in self._reserved.values())}

    def _listing(self, user: str) -> protocol.UserShelf:
        return protocol.UserShelf(
            user=user,
            entries=_entries(self._memories(user)),
            charged_bytes=self.charged(user),
            used_bytes=_sum(memory for memory in self._off if memory.kept.user == user),
        )

    def take_off(self, user: str, name: str | None) -> tuple[list[protocol.ShelfEntry], int]:
        """Take *name*, or everything (None), off the shelf of *user*; return what, and how much of it is still in use.

        Raises
        ------
        NotShelved
            When there is nothing of that name, or nothing at all.
        """
        memories = [memory for memory in self._memories(user) if name in (None, memory.kept.name)]
        if not memories:
            raise NotShelved(f"there is {'nothing' if name is None else f'no {name!r}'} on the shelf of {user!r}.")
        self._take_all_off(memories)
        return _entries(memories), _sum(memory for memory in memories if memory in self._off)

    def _memories(self, user: str) -> list[_Memory]:
        """Return what is on the shelf of *user*, in the order of names."""
        return [memory for _, memory in sorted(self._shelves.get(user, {}).items())]

    # --- off the shelf ------------------------------------------------------------------------------------------------

    def _take_all_off(self, memories: list[_Memory]) -> None:
        """Take what is one user's off the shelf."""
        for memory in memories:
            del self._shelves[memory.kept.user][memory.kept.name]
            self._take_off(memory)
        self._changed(memories[0].kept.user)

    def _take_off(self, memory: _Memory) -> None:
        """Free memory that is on the shelf no more, as soon as nobody uses it."""
        if is_in_use(memory.descriptor):
            self._off.append(memory)
            self._mark_off(memory)
            self._look_later()
        else:
            self._free(memory)

    def _mark_off(self, memory: _Memory) -> None:
        if not memory.kept.is_off:
            memory.kept = msgspec.structs.replace(memory.kept, is_off=True)
            self._keep(memory)

    def _free(self, memory: _Memory) -> None:
        self._send_to_keeper(protocol.Delete(key=_key(memory)), [])
        os.close(memory.descriptor)

    def _look_later(self) -> None:
        if self._look_due is None and self._off:
            self._look_due = asyncio.get_running_loop().call_later(_LOOK_INTERVAL, self._look)

    def _look(self) -> None:
        """Free what was taken off and is used no more."""
        self._look_due = None
        free = [memory for memory in self._off if not is_in_use(memory.descriptor)]
        for memory in free:
            self._off.remove(memory)
            self._free(memory)
        for user in {memory.kept.user for memory in free}:
            self._changed(user)
        self._look_later()


def _key(memory: _Memory) -> str:
    return f"{KEY_PREFIX}{memory.kept.number}"


def _user(process: SessionHandle) -> str:
    assert process.user is not None
    return process.user


def _entries(memories: Iterable[_Memory]) -> list[protocol.ShelfEntry]:
    return [
        protocol.ShelfEntry(name=memory.kept.name, bytes=memory.size, shelved_at=memory.kept.shelved_at)
        for memory in memories
    ]


def _sum(memories: Iterable[_Memory]) -> int:
    return sum(memory.size for memory in memories)
