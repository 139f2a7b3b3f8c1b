"""How much a user's shelf may take: what their quota leaves, and what everybody's sessions leave of the device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sharedkernel.errors import QuotaExceeded, Refused
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.quota_use import quota_of, used_by
from sharedkernel.protocol import Device
from sharedkernel.status.refusal_text import explain_quota
from sharedkernel.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a user's shelf has to fit into; bytes."""

    quota: int
    #: used by the user's sessions
    sessions: int
    #: left by everybody's sessions; all shelves have to fit into it
    device: int

    def left(self, charged: int, charged_in_all: int) -> tuple[int, int]:
        """Return what the user's quota leaves, and what the device leaves; bytes, never negative.

        Parameters
        ----------
        charged, charged_in_all
            Bytes that the user's shelf is charged with, and all shelves together.
        """
        return max(0, self.quota - self.sessions - charged), max(0, self.device - charged_in_all)

    def check(self, name: str, size: int, *, charged: int, charged_in_all: int, replaced: int | None) -> None:
        """Return if *size* bytes more fit, to be shelved as *name*.

        Parameters
        ----------
        name, size
            The entry that is to be shelved, and its size in bytes.
        charged, charged_in_all
            As in :meth:`left`.
        replaced
            Bytes of what has that name now; None: nothing has.

        Raises
        ------
        Refused
            When they do not, with what to do.
        """
        by_quota, by_device = self.left(charged, charged_in_all)
        if size <= min(by_quota, by_device):
            return
        advice = 'free what you no longer need (`del name`, `del shelf["name"]`) and shelve it again'
        if replaced is not None:
            advice += f"; `del shelf[{name!r}]` frees the {format_bytes(replaced)} that it would replace"
        left = format_bytes(min(by_quota, by_device))
        needs = f"{name!r} needs {format_bytes(size)} on the shelf, and {left} are left"
        if by_device < by_quota:
            raise Refused(
                f"{needs}: sessions and shelves of all users have the rest. Nothing was changed: {advice}.",
                reason="memory",
            )
        raise QuotaExceeded(
            explain_quota(
                needs,
                self.quota,
                sessions=self.sessions,
                shelf=charged,
                outcome="Nothing was changed",
                advice=advice,
            )
        )


def room_for(user: str, sessions: Collection[SessionHandle], device: Device) -> Room:
    """Return what the shelf of *user* has to fit into beside all *sessions* on *device*."""
    own = [process for process in sessions if process.user == user]
    by_user: dict[str | None, list[SessionHandle]] = {}
    for process in sessions:
        by_user.setdefault(process.user, []).append(process)
    resident = sum(used_by(each, by_page=True) for each in by_user.values())
    resident += sum(process.memory.framework for process in sessions)
    # Shelves leave room for the largest iteration, or there would be sessions that could never run again.
    iteration = max((process.memory.ephemeral or 0 for process in sessions), default=0)
    return Room(
        quota=quota_of(own[0].limits if own else None, device),
        sessions=used_by(own, by_page=True),
        device=device.usable_bytes - resident - iteration,
    )
