"""The users' shelves on the executor's side: who has what under which name, and how much room there is.

What is shelved is a file of the executor's (`files.py`), which a session has written through a descriptor that it was
lent. What is charged is the room that the file has, whatever anybody says. All that the next executor has to know is in
the files' names; what is in the files, nobody here looks at.

To shelve takes two steps, since writing takes a while: the executor makes a file with all of its room, and gives it its
place once the session has written it. Until then it is charged as a reservation, for as long as the session has it.

To replace a name or to take it off the shelf does not free what a session still has mapped, so that stays charged
until nobody uses it.

Sessions ask over the descriptor socket (`processes/fd_server.py`), gateways through `control/api.py`. The layout of
what is shelved is :mod:`sharedkernel.shelf.layout`'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from sharedkernel import protocol
from sharedkernel.errors import QuotaExceeded, Refused, SharedKernelError
from sharedkernel.executor.processes.fd_server import FdHandler, FdReply
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import by_user, held_by, quota_use
from sharedkernel.executor.shelf.files import FileState, ShelfFile, escaped, find_files, in_pages
from sharedkernel.paths import make_private_directory
from sharedkernel.protocol import Device
from sharedkernel.quota_check import QuotaUse
from sharedkernel.status.refusal_text import explain_shelf_shortage
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: names on one shelf at most, so that a listing is one packet; bytes of a name in UTF-8, and in the name of its file,
#: which has number, length and state besides
MOST_NAMES, LONGEST_NAME, LONGEST_ESCAPED = 256, 200, 210


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room that more on a user's shelf has to fit into."""

    #: the user's quota, with what is on the shelf
    use: QuotaUse
    #: bytes that everybody's sessions and shelves leave of the device
    device_left: int

    @property
    def left(self) -> int:
        """Bytes that fit, never negative."""
        of_quota = self.use.left
        return max(0, self.device_left if of_quota is None else min(of_quota, self.device_left))

    def check(self, name: str, size: int, *, replaced: int | None) -> None:
        """Return if *size* bytes more fit, to be shelved as *name*.

        Parameters
        ----------
        name, size
            The entry that is to be shelved, and its size in bytes.
        replaced
            Bytes of what has that name now; None: nothing has.

        Raises
        ------
        QuotaExceeded
            When the quota does not leave them, with what to do.
        Refused
            When the device does not.
        """
        beyond_quota, beyond_device = self.use.exceeded_by(size), max(0, size - self.device_left)
        if beyond_device > beyond_quota:
            text = explain_shelf_shortage(name, size, left=self.left, use=None, replaced=replaced)
            raise Refused(text, reason="memory")
        if beyond_quota:
            raise QuotaExceeded(explain_shelf_shortage(name, size, left=self.left, use=self.use, replaced=replaced))


def room_for(sessions: Collection[SessionHandle], device: Device, user: str, shelf: int, shelves: int) -> Room:
    """Return what more on a shelf has to fit into.

    Parameters
    ----------
    sessions
        All sessions of the device.
    device
        The device.
    user
        Whose shelf it is.
    shelf, shelves
        Bytes that this shelf is charged with, and all shelves together.
    """
    users = by_user(sessions)
    # That leaves room for the iterations of open sections, as far as they are known.
    resident = sum(map(held_by, users.values()))
    return Room(
        use=quota_use(users.get(user, ()), device, shelf=shelf),
        device_left=max(0, device.usable_bytes - resident - shelves),
    )


class NotShelved(SharedKernelError):
    """There is nothing of that name on the user's shelf."""

    reason = "not_shelved"


class ShelfStore:
    """All users' shelves.

    Parameters
    ----------
    directory
        Where the files are; made by :meth:`start`.
    room
        Returns what more on a user's shelf has to fit into, given what it and all shelves are charged with, in bytes.
    on_change
        Called with a user and what that user's shelf is charged with, in bytes, whenever it has changed.
    """

    def __init__(
        self, directory: Path, room: Callable[[str, int, int], Room], on_change: Callable[[str, int], None]
    ) -> None:
        self._directory = directory
        self._find_room = room
        self._on_change = on_change
        #: by number
        self._files: dict[int, ShelfFile] = {}
        #: numbers of those that are just being made
        self._making: set[int] = set()
        #: what each user was last said to be charged with
        self._charged: Counter[str] = Counter()
        self._number = 0
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Go on with what earlier executors had.

        Raises
        ------
        ConfigError
            When the directory cannot be used.
        """
        for path in (self._directory.parent, self._directory):
            make_private_directory(path, named_by="--shelf-dir")
        self._files = {file.number: file for file in find_files(self._directory)}
        self._number = max(self._files, default=0)
        for file in list(self._files.values()):
            self._keep_latest(file.user, file.name)  # that executor may have ended before it took the other off
        self.look()

    # --- figures ------------------------------------------------------------------------------------------------------

    def charged(self, user: str) -> int:
        """Return what *user*'s shelf is charged with: what is on it, off it but in use, and reserved; bytes."""
        return _sum(self._files_of(user))

    def room(self, user: str) -> Room:
        """Return what more on *user*'s shelf has to fit into."""
        return self._find_room(user, self.charged(user), _sum(self._files.values()))

    def _files_of(self, user: str, *states: FileState) -> list[ShelfFile]:
        """Return a user's files, or those in one of these states, in the order of names."""
        found = [file for file in self._files.values() if file.user == user and file.state in (states or FileState)]
        return sorted(found, key=lambda file: file.name)

    def _tell_changes(self) -> None:
        before, self._charged = self._charged, Counter()
        for file in self._files.values():
            self._charged[file.user] += file.size
        for user in {*before, *self._charged}:
            if self._charged[user] != before[user]:
                self._on_change(user, self._charged[user])

    def look(self, user: str | None = None) -> None:
        """Charge what files take by now, and free those that are not on a shelf and that nobody uses (any more).

        *user* is whose; None: everybody's.
        """
        files = [*self._files.values()] if user is None else self._files_of(user)
        for file in [file for file in files if file.number not in self._making]:
            try:
                file.measure()
                if file.state is not FileState.SHELVED and not file.is_in_use():
                    del self._files[file.number]
                    self._tasks.spawn(asyncio.to_thread(file.remove))
            except FileNotFoundError:
                log.error("somebody has removed %s", file.path)
                del self._files[file.number]
            except OSError as error:  # no descriptor is free: the next look tries again
                log.warning("cannot look at %s (%s)", file.path, error.strerror)
        self._tell_changes()

    # --- what is there, and what comes --------------------------------------------------------------------------------

    def find(self, user: str, name: str) -> ShelfFile:
        """Return what is on the shelf of *user* under *name*.

        Raises
        ------
        NotShelved
            When there is nothing of that name.
        """
        found = self._named(user, name)
        if found is None:
            raise NotShelved(f"there is no {name!r} on your shelf; list(shelf) says what there is.")
        return found

    def _named(self, user: str, name: str) -> ShelfFile | None:
        return next((file for file in self._files_of(user, FileState.SHELVED) if file.name == name), None)

    def _keep_latest(self, user: str, name: str) -> None:
        """Take off all files of a name but the one that was begun last."""
        named = [file for file in self._files_of(user, FileState.SHELVED) if file.name == name]
        for file in sorted(named, key=lambda file: file.number)[:-1]:
            _change(file, FileState.OFF)

    def _check_name(self, user: str, name: str) -> None:
        if not 0 < len(name.encode()) <= LONGEST_NAME or len(escaped(name).encode()) > LONGEST_ESCAPED:
            text = f"a name on a shelf is 1 to {LONGEST_NAME} bytes long in UTF-8, and less with signs such as `/`."
            raise Refused(text, reason="name")
        names = {file.name for file in self._files_of(user, FileState.SHELVED, FileState.RESERVED)}
        if name not in names and len(names) >= MOST_NAMES:
            raise Refused(
                f"a shelf holds at most {MOST_NAMES} names; shelve several things as one dict, or delete some.",
                reason="names",
            )
        if len(self._files_of(user, FileState.OFF, FileState.RESERVED)) >= MOST_NAMES:
            raise Refused(
                f"{MOST_NAMES} values that were replaced or deleted are still in use; let go of some first (`del`).",
                reason="names",
            )

    # --- the shelves as they are --------------------------------------------------------------------------------------

    def listings(self, user: str | None) -> list[protocol.UserShelf]:
        """Return the shelf of *user*, or everybody's (None), without those that nothing is charged for."""
        users = sorted({file.user for file in self._files.values()}) if user is None else [user]
        return [self.listing(each) for each in users if self.charged(each)]

    def listing(self, user: str) -> protocol.UserShelf:
        """Return the shelf of *user*."""
        return protocol.UserShelf(
            user=user,
            entries=_entries(self._files_of(user, FileState.SHELVED)),
            charged_bytes=self.charged(user),
            used_bytes=_sum(self._files_of(user, FileState.OFF)),
        )

    def take_off(self, user: str, name: str | None) -> tuple[list[protocol.ShelfEntry], int]:
        """Take *name*, or everything (None), off the shelf of *user*; return what, and how much of it is still in use.

        Raises
        ------
        NotShelved
            When there is nothing of that name, or nothing at all.
        """
        files = [file for file in self._files_of(user, FileState.SHELVED) if name in (None, file.name)]
        if not files:
            raise NotShelved(f"there is {'nothing' if name is None else f'no {name!r}'} on the shelf of {user!r}.")
        try:
            for file in files:
                _change(file, FileState.OFF)
        finally:
            self.look(user)
        return _entries(files), _sum(file for file in files if file.number in self._files)

    # --- what sessions ask --------------------------------------------------------------------------------------------

    def handlers(self) -> dict[type[protocol.Message], FdHandler]:
        """Return what answers each message of sessions."""
        return {
            protocol.ReserveShelf: self._reserve,
            protocol.Shelve: self._shelve,
            protocol.FetchShelved: self._fetch,
            protocol.Unshelve: self._unshelve,
            protocol.ListShelf: self._list,
        }

    async def _reserve(self, process: SessionHandle, message: protocol.ReserveShelf, _: list[int]) -> FdReply:
        """Make a file for a later entry, and lend it."""
        user, name, size = process.user or "", message.name, max(0, message.bytes)
        self.look(user)
        self._check_name(user, name)
        older = self._named(user, name)
        self.room(user).check(name, in_pages(size), replaced=None if older is None else older.size)
        self._number = max(self._number + 1, time.time_ns() // 1000)
        file = ShelfFile(self._directory / escaped(user), user, name, self._number, size, FileState.RESERVED)
        self._files[file.number] = file
        self._making.add(file.number)
        self._tell_changes()
        try:
            descriptor = await asyncio.to_thread(file.create)
        except OSError as error:
            del self._files[file.number]
            raise Refused(
                f"there is no room on the disk for {name!r} ({error.strerror}); nothing was changed: free some space "
                "there, or ask the administrator of this machine.",
                reason="memory",
            ) from None
        finally:
            self._making.discard(file.number)
            self._tell_changes()
        return FdReply(protocol.ShelfReserved(request=message.request, number=file.number), [descriptor])

    def _shelve(self, process: SessionHandle, message: protocol.Shelve, _: list[int]) -> None:
        """Put what was reserved, and is written now, on the shelf; once more it changes nothing."""
        file = self._files.get(message.number)
        if file is None or file.user != process.user or file.state is FileState.OFF:
            raise NotShelved("what was written for the shelf is gone; shelve it again.")
        if file.state is FileState.RESERVED:
            _change(file, FileState.SHELVED)  # before the older one goes: there is never neither
            self._keep_latest(file.user, file.name)
            self.look(file.user)

    def _fetch(self, process: SessionHandle, message: protocol.FetchShelved, _: list[int]) -> FdReply:
        file = self.find(process.user or "", message.name)
        try:
            return FdReply(protocol.Shelved(request=message.request), [file.lend()])
        except OSError as error:
            raise _unusable(file, error) from None

    def _unshelve(self, process: SessionHandle, message: protocol.Unshelve, _: list[int]) -> None:
        file = self.find(process.user or "", message.name)
        self.take_off(file.user, file.name)

    def _list(self, process: SessionHandle, message: protocol.ListShelf, _: list[int]) -> FdReply:
        user = process.user or ""
        self.look(user)
        shelf = self.listing(user)
        listing = protocol.ShelfListing(
            request=message.request,
            entries=shelf.entries,
            charged_bytes=shelf.charged_bytes,
            left_bytes=self.room(user).left,
        )
        return FdReply(listing)


def _change(file: ShelfFile, state: FileState) -> None:
    """Change a file's state.

    Raises
    ------
    Refused
        When that is not possible now.
    """
    try:
        file.become(state)
    except OSError as error:
        raise _unusable(file, error) from None


def _unusable(file: ShelfFile, error: OSError) -> Refused:
    text = f"{file.name!r} on the shelf cannot be used now ({error.strerror}): its file is locked or gone; try again."
    return Refused(text, reason="shelf")


def _entries(files: Iterable[ShelfFile]) -> list[protocol.ShelfEntry]:
    return [protocol.ShelfEntry(name=file.name, bytes=file.size, shelved_at=file.number / 1e6) for file in files]


def _sum(files: Iterable[ShelfFile]) -> int:
    return sum(file.size for file in files)
