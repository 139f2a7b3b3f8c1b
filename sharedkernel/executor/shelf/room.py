"""The room for a user's shelf: what their quota leaves, and what everybody's sessions leave of the device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sharedkernel.errors import QuotaExceeded, Refused
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import held_by, quota_use
from sharedkernel.protocol import Device
from sharedkernel.quota_check import QuotaUse
from sharedkernel.status.refusal_text import explain_shelf_shortage


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


def room_for(user: str, sessions: Collection[SessionHandle], device: Device, *, shelf: int, shelves: int) -> Room:
    """Return what more on a shelf has to fit into.

    Parameters
    ----------
    user
        Whose shelf it is.
    sessions
        All sessions of the device.
    device
        The device.
    shelf, shelves
        Bytes that this shelf is charged with, and all shelves together.
    """
    own = [process for process in sessions if process.user == user]
    by_user: dict[str | None, list[SessionHandle]] = {}
    for process in sessions:
        by_user.setdefault(process.user, []).append(process)
    # That leaves room for the iterations of open sections, as far as they are known.
    resident = sum(map(held_by, by_user.values()))
    return Room(
        use=quota_use(own, device, shelf=shelf),
        device_left=max(0, device.usable_bytes - resident - shelves),
    )
