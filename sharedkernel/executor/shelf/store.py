"""The users' shelves on the executor's side: who has what under which name, and how much room there is.

What is shelved is a memory file that a session wrote; its size is sealed, and what is charged is that size, whatever
anybody says. This process holds a descriptor of it and so does the keeper: either may be killed, and the other still
has it. What is in the memory, nobody here looks at.

To shelve takes two steps, since writing takes a while: a session reserves room, writes, and hands the memory over. A
reservation is charged like memory, and is given back when its session's connection ends.

To replace a name or to take it off the shelf does not free what a session still has mapped, so that stays charged
until nobody uses it (`memory_files.py`).

What sessions ask is answered by `session_requests.py`, what gateways ask by `control/api.py`. The layout of what is
shelved is :mod:`sharedkernel.shelf.layout`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.executor.shelf.memory_files import is_in_use, sealed_size, size_of
from sharedkernel.executor.shelf.room import Room

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
class ShelvedMemory:
    """A piece of memory, with this process's descriptor of it."""

    kept: KeptMemory
    descriptor: int
    #: bytes that are charged
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
        self._shelves: dict[str, dict[str, ShelvedMemory]] = {}
        #: taken off, still in use
        self._off: list[ShelvedMemory] = []
        #: who has reserved how many bytes, by who asked for it (a session, or what brings a shelf here) and its number
        self._reserved: dict[tuple[object, int], tuple[str, int]] = {}
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
        memory = ShelvedMemory(kept, descriptors[0], size_of(descriptors[0]))
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

    def _keep(self, memory: ShelvedMemory) -> None:
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

    def _on_shelves(self) -> list[ShelvedMemory]:
        return [memory for shelf in self._shelves.values() for memory in shelf.values()]

    def room(self, user: str) -> Room:
        """Return what more on *user*'s shelf has to fit into."""
        return self._find_room(user, self.charged(user), self._charged_in_all())

    def _changed(self, user: str) -> None:
        self._on_change(user, self.charged(user))

    # --- what is there, and what comes --------------------------------------------------------------------------------

    def find(self, user: str, name: str) -> ShelvedMemory:
        """Return what is on the shelf of *user* under *name*.

        Raises
        ------
        NotShelved
            When there is nothing of that name.
        """
        memory = self._shelves.get(user, {}).get(name)
        if memory is None:
            raise NotShelved(f"there is no {name!r} on your shelf; list(shelf) says what there is.")
        return memory

    def reserve(self, user: str, name: str, size: int, key: tuple[object, int]) -> None:
        """Charge *user* with *size* bytes for a later entry *name*; *key* names the reservation.

        Raises
        ------
        SharedKernelError
            When the name cannot be had, or there is no room.
        """
        self._check_name(user, name)
        self._check_room(user, name, size)
        self._reserved[key] = (user, size)
        self._changed(user)

    def withdraw(self, key: tuple[object, int]) -> None:
        """Give back what is reserved as *key*, if it is still."""
        user, size = self._reserved.pop(key, ("", 0))
        if size:
            self._changed(user)

    def put(
        self, user: str, name: str, descriptors: list[int], reservation: tuple[object, int], *, shelved_at: float
    ) -> None:
        """Put a memory file on the shelf of *user*, instead of what had that name.

        Parameters
        ----------
        user, name
            Whose shelf, and as what.
        descriptors
            That of the file; it stays open.
        reservation
            Names the reservation that made room; one that is not known any more is none.
        shelved_at
            Seconds since 1970.

        Raises
        ------
        SharedKernelError
            When it is no memory file of sealed size, the name cannot be had, or there is no room.
        """
        self._check_name(user, name)
        size = sealed_size(descriptors)
        _, reserved = self._reserved.get(reservation, (user, 0))
        # An executor that has just begun knows no reservation, and one that holds may be too small.
        self._check_room(user, name, size - reserved)
        self._reserved.pop(reservation, None)
        self._number += 1
        kept = KeptMemory(number=self._number, user=user, name=name, shelved_at=shelved_at)
        memory = ShelvedMemory(kept, os.dup(descriptors[0]), size)
        shelf = self._shelves.setdefault(user, {})
        older = shelf.get(name)
        shelf[name] = memory
        self._keep(memory)  # before the older one goes: there is never neither
        if older is not None:
            self._take_off(older)
        self._changed(user)

    def forget_reservations(self, holder: object) -> None:
        """Give back what *holder* reserved."""
        for key in [key for key in self._reserved if key[0] is holder]:
            user, _ = self._reserved.pop(key)
            self._changed(user)

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
        self.room(user).check(name, size, replaced=None if older is None else older.size)

    # --- the shelves as they are --------------------------------------------------------------------------------------

    def listings(self, user: str | None) -> list[protocol.UserShelf]:
        """Return the shelf of *user*, or everybody's (None), without those that nothing is charged for."""
        users = sorted(self._users()) if user is None else [user]
        return [self.listing(each) for each in users if self.charged(each)]

    def _users(self) -> set[str]:
        """Return everybody who may be charged for something."""
        off = {memory.kept.user for memory in self._off}
        return {*self._shelves, *off, *(user for user, _ in self._reserved.values())}

    def listing(self, user: str) -> protocol.UserShelf:
        """Return the shelf of *user*."""
        return protocol.UserShelf(
            user=user,
            entries=_entries(self._memories(user)),
            charged_bytes=self.charged(user),
            used_bytes=_sum(memory for memory in self._off if memory.kept.user == user),
        )

    def take_off(self, user: str, name: str | None, number: int | None = None) -> tuple[list[protocol.ShelfEntry], int]:
        """Take *name*, or everything (None), off the shelf of *user*; return what, and how much of it is still in use.

        Parameters
        ----------
        user, name
            Of whose shelf, and what.
        number
            Only what has this number, and only if nobody uses it; None: whatever it is.

        Raises
        ------
        NotShelved
            When there is nothing of that name, or nothing at all.
        """
        memories = [memory for memory in self._memories(user) if name in (None, memory.kept.name)]
        if number is not None:
            memories = [each for each in memories if each.kept.number == number and not is_in_use(each.descriptor)]
        if not memories:
            raise NotShelved(f"there is {'nothing' if name is None else f'no {name!r}'} on the shelf of {user!r}.")
        for memory in memories:
            del self._shelves[user][memory.kept.name]
            self._take_off(memory)
        self._changed(user)
        return _entries(memories), _sum(memory for memory in memories if memory in self._off)

    def _memories(self, user: str) -> list[ShelvedMemory]:
        """Return what is on the shelf of *user*, in the order of names."""
        return [memory for _, memory in sorted(self._shelves.get(user, {}).items())]

    # --- off the shelf ------------------------------------------------------------------------------------------------

    def _take_off(self, memory: ShelvedMemory) -> None:
        """Free memory that is on the shelf no more, as soon as nobody uses it."""
        if is_in_use(memory.descriptor):
            self._off.append(memory)
            self._mark_off(memory)
            self._look_later()
        else:
            self._free(memory)

    def _mark_off(self, memory: ShelvedMemory) -> None:
        if not memory.kept.is_off:
            memory.kept = msgspec.structs.replace(memory.kept, is_off=True)
            self._keep(memory)

    def _free(self, memory: ShelvedMemory) -> None:
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


def _key(memory: ShelvedMemory) -> str:
    return f"{KEY_PREFIX}{memory.kept.number}"


def _entries(memories: Iterable[ShelvedMemory]) -> list[protocol.ShelfEntry]:
    return [
        protocol.ShelfEntry(name=memory.kept.name, bytes=memory.size, shelved_at=memory.kept.shelved_at)
        for memory in memories
    ]


def _sum(memories: Iterable[ShelvedMemory]) -> int:
    return sum(memory.size for memory in memories)
