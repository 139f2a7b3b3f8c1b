"""Figures of a refusal for want of memory, from the core to the sentence that a user reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sharedkernel.quota_check import QuotaUse

#: least that an idle notebook must hold for others to ask for it, in bytes
LEAST_ROOM = 16 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Figures of memory that was refused, in bytes; `status/refusal_text.py` puts them into words."""

    #: over the user's quota; more than the device has for it; waited for in vain. A metric label
    reason: Literal["quota", "no_lane_fits", "memory"]
    #: what the memory was wanted for
    purpose: Literal["iteration", "growth", "restore", "context"]
    #: None: not known
    wanted: int | None
    #: the user's quota, and what counts against it
    use: QuotaUse
    #: what the session keeps, and what the device has beside that
    kept: int
    room: int
    capacity: int
    reserve: int
    #: what is free at this moment, and what is set aside for iterations
    free: int
    lanes: int
    #: seconds of waiting; 0: there was none worth mentioning
    waited: float = 0.0
    #: users and what each of them keeps, the largest first
    holders: tuple[tuple[str, int], ...] = ()
