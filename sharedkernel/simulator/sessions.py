"""The sessions of a simulated device: what they will do, and what became of each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sharedkernel.simulator.report import JobRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCell:
    """A stretch of work on the device."""

    #: device time that it needs when it runs alone, seconds
    seconds: float
    #: length of each of its iterations, seconds
    iteration: float
    #: seconds from the end of the session's cell before it, or from time 0, until it is sent
    pause: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSession:
    """One session and all that it will do."""

    name: str
    #: whose it is
    user: str
    cells: Sequence[SimulatedCell]
    #: bytes that it keeps between iterations, from its first one on
    persistent: int = 0
    #: bytes that an iteration needs beyond
    ephemeral: int = 0
    #: bytes that its process holds
    framework: int = 0
    #: how busy it keeps the device when it runs alone, 0 to 1
    utilisation: float = 1.0
    #: trust domain
    domain: str = "all"
    #: whether it ends with its last cell; else it stays, with all that is persistent
    ends: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class CellRun(JobRun):
    """The outcome of one cell, which came when it was sent."""

    session: SimulatedSession
    cell: SimulatedCell
    #: when it was first granted the device; infinite: it was not
    granted: float = math.inf
    #: why it was refused; empty: it was not
    refused: str = ""
