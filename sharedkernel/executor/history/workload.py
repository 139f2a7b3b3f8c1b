"""What sessions' cells took, kept in a journal so that the next executor's core begins with it."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

import msgspec

from sharedkernel.executor.history.journal import Journal
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import UserId

#: the journal's name in the runtime directory, and the version of its records
JOURNAL_NAME, _SCHEMA = "history.journal", 2
#: cells that are kept for the next executor
_CELLS_KEPT = 4000


class CellTook(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One cell that ended."""

    user: str
    #: a hash; None: not known
    source: str | None
    #: device-seconds, more than 0
    seconds: float


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A record of earlier versions, which is no longer of use."""


class WorkloadHistory:
    """A record of past work, from which the scheduling core predicts sessions' work.

    Parameters
    ----------
    directory
        Where the journal is.
    """

    def __init__(self, directory: Path) -> None:
        self._cells: deque[CellTook] = deque(maxlen=_CELLS_KEPT)
        self._journal = Journal(
            directory / JOURNAL_NAME, CellTook | Rates, schema=_SCHEMA, summarise=lambda: list(self._cells)
        )

    def open(self) -> events.HistoryRecalled:
        """Read what the executors before this one have learned; return what the core should know of it."""
        for record in self._journal.open():
            if isinstance(record, CellTook) and 0 < record.seconds < math.inf:
                self._cells.append(record)
        cells = ((UserId(cell.user), cell.source, cell.seconds) for cell in self._cells)
        return events.HistoryRecalled(cells=tuple(cells))

    def close(self) -> None:
        """Keep what is not kept yet."""
        self._journal.close()

    def cell_ended(self, user: str, source: str | None, seconds: float) -> None:
        """Record that a cell of *user* took *seconds* of the device."""
        if seconds > 0:
            cell = CellTook(user=user, source=source, seconds=seconds)
            self._cells.append(cell)
            self._journal.add(cell)
