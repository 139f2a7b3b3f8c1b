"""What is on a shelf, read and written in parts, for a shelf that goes to another host.

Gateways carry the parts (`gateway/cluster/shelf_carrier.py`). What is written is charged from its first part on, and is
on the shelf once its last one is there, whole or not at all. Nobody looks at what is in it.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
from dataclasses import dataclass

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.shelf.memory_files import is_in_use
from sharedkernel.executor.shelf.store import NotShelved, ShelfStore
from sharedkernel.protocol.descriptors import SHELF_MEMORY

#: most bytes of a part that is read: a message that takes them must not hold up the event loop for long
MAX_PART_BYTES = 4 << 20
#: seconds without a part after which what was written is dropped
_PATIENCE = 30.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True, eq=False)
class _Arrival:
    name: str
    total_bytes: int
    descriptor: int
    #: of its reservation; -1: the same is on the shelf already, and is only compared
    number: int
    written: int = 0
    drop_due: asyncio.TimerHandle | None = None


class ShelfTransfers:
    """Reads and writes parts; knows what has come in part.

    Parameters
    ----------
    store
        The shelves.
    """

    def __init__(self, store: ShelfStore) -> None:
        self._store = store
        #: at most one thing a user
        self._arriving: dict[str, _Arrival] = {}
        self._numbers = itertools.count()

    def read(self, message: protocol.ReadShelf) -> protocol.ShelfPart:
        """Return a part of what is on a shelf.

        Raises
        ------
        NotShelved
            When it is not there (any more).
        Refused
            When a session uses it.
        """
        memory = self._store.find(message.user, message.name)
        if message.number not in (None, memory.kept.number):
            raise NotShelved(f"{message.name!r} was replaced on the shelf meanwhile; begin again.")
        if is_in_use(memory.descriptor):
            raise Refused(f"a notebook uses {message.name!r}, which stays where it is.", reason="in_use")
        length = max(0, min(message.length, MAX_PART_BYTES))
        return protocol.ShelfPart(
            request=message.request,
            number=memory.kept.number,
            total_bytes=os.fstat(memory.descriptor).st_size,
            shelved_at=memory.kept.shelved_at,
            data=os.pread(memory.descriptor, length, max(0, message.offset)),
        )

    def write(self, message: protocol.WriteShelf) -> None:
        """Take the next part of an entry; the last one puts it on the shelf.

        Raises
        ------
        SharedKernelError
            When the name is taken (reason ``arrived``, after the last part: by the same bytes, which have come before),
            there is no room, or the part is not the next one; then nothing of it stays.
        """
        if message.offset == 0:
            self._begin(message)
        arrival = self._arriving.get(message.user)
        try:
            if arrival is None or (arrival.name, arrival.written) != (message.name, message.offset):
                raise Refused(f"this is not the next part of {message.name!r}; begin again.", reason="bad_request")
            if not message.data or arrival.written + len(message.data) > arrival.total_bytes:
                raise Refused(f"a part of {message.name!r} is empty or too long; begin again.", reason="bad_request")
            if arrival.number < 0:
                arrival.written += _compare(arrival.descriptor, message)
            else:
                arrival.written += _write(arrival.descriptor, message.data, message.offset)
            if arrival.written < arrival.total_bytes:
                self._await_next(message.user, arrival)
                return
            if arrival.number < 0:
                raise Refused(f"{message.name!r} is here already.", reason="arrived")
            fcntl.fcntl(arrival.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            key = (self, arrival.number)
            self._store.put(message.user, message.name, [arrival.descriptor], key, shelved_at=message.shelved_at)
        except BaseException:
            self._drop(message.user)
            raise
        self._drop(message.user)

    def _begin(self, message: protocol.WriteShelf) -> None:
        self._drop(message.user)
        try:
            found = self._store.find(message.user, message.name)
        except NotShelved:
            pass
        else:
            if (found.kept.shelved_at, found.size) != (message.shelved_at, message.total_bytes):
                raise _taken(message.name)
            self._arriving[message.user] = _Arrival(message.name, message.total_bytes, os.dup(found.descriptor), -1)
            return
        number = next(self._numbers)
        self._store.reserve(message.user, message.name, max(0, message.total_bytes), (self, number))
        descriptor = -1
        try:
            descriptor = os.memfd_create(SHELF_MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, max(0, message.total_bytes))
        except (OSError, OverflowError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            self._store.withdraw((self, number))
            raise Refused(f"there is no memory for {message.name!r}: {error}.", reason="memory") from error
        self._arriving[message.user] = _Arrival(message.name, message.total_bytes, descriptor, number)

    def _await_next(self, user: str, arrival: _Arrival) -> None:
        if arrival.drop_due is not None:
            arrival.drop_due.cancel()
        arrival.drop_due = asyncio.get_running_loop().call_later(_PATIENCE, self._drop, user)

    def _drop(self, user: str) -> None:
        """Forget what arrives for *user*, and give back what is reserved for it still."""
        arrival = self._arriving.pop(user, None)
        if arrival is None:
            return
        if arrival.drop_due is not None:
            arrival.drop_due.cancel()
        os.close(arrival.descriptor)
        self._store.withdraw((self, arrival.number))


def _write(descriptor: int, data: bytes, offset: int) -> int:
    """Write all of *data*, and return its length."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
    return len(data)


def _compare(descriptor: int, message: protocol.WriteShelf) -> int:
    """Return the length of a part if the same bytes are there: notebooks may have written into either since."""
    if os.pread(descriptor, len(message.data), message.offset) != message.data:
        raise _taken(message.name)
    return len(message.data)


def _taken(name: str) -> Refused:
    return Refused(f"there is another {name!r} on the shelf already.", reason="exists")
