"""The service of sessions' past cells, kept in a file so that the next executor's core begins with it."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

import msgspec

from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import UserId
from sharedkernel.system.state_file import StateFile

#: the file's name in the state directory
HISTORY_NAME = "history.json"
#: cells that are kept for the next executor
_CELLS_KEPT = 4000


class CellTook(msgspec.Struct, frozen=True, kw_only=True):
    """One cell that ended."""

    user: str
    #: a hash; None: not known
    source: str | None
    #: device-seconds, more than 0
    seconds: float


class PastCells(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """The content of the file."""

    #: oldest first
    cells: list[CellTook]


class WorkloadHistory:
    """A record of past work, from which the scheduling core predicts sessions' work.

    Parameters
    ----------
    directory
        Where the file is.
    """

    def __init__(self, directory: Path) -> None:
        self._cells: deque[CellTook] = deque(maxlen=_CELLS_KEPT)
        self._file = StateFile(directory / HISTORY_NAME, PastCells)

    def open(self) -> events.HistoryRecalled:
        """Read what the executors before this one have learned; return what the core should know of it."""
        if (past := self._file.read()) is not None:
            self._cells.extend(cell for cell in past.cells if 0 < cell.seconds < math.inf)
        cells = ((UserId(cell.user), cell.source, cell.seconds) for cell in self._cells)
        return events.HistoryRecalled(cells=tuple(cells))

    async def keep(self) -> None:
        """Write what has changed."""
        await self._file.keep(PastCells([*self._cells]))

    def close(self) -> None:
        """Write what is left."""
        self._file.write(PastCells([*self._cells]))

    def cell_ended(self, user: str, source: str | None, seconds: float) -> None:
        """Record that a cell of *user* took *seconds* of the device."""
        if 0 < seconds < math.inf:
            self._cells.append(CellTook(user=user, source=source, seconds=seconds))
