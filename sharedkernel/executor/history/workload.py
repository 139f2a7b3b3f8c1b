"""What the executor expects of the sessions' work, and what it has learned that outlives it.

Sessions say what their cells show (:class:`~sharedkernel.protocol.Foreseen`); the core is told that, with a utilisation
that follows from it. What cells took, and what the device was seen to do, is kept in a journal in the runtime
directory, so that the next executor begins with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from sharedkernel import protocol
from sharedkernel.executor.history.journal import Journal
from sharedkernel.executor.history.utilisation_forecast import Rates, UtilisationForecast
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import SessionId, UserId

#: the journal's name in the runtime directory, and the version of its records
JOURNAL_NAME, _SCHEMA = "history.journal", 2
#: cells that are kept for the next executor
_CELLS_KEPT = 4000
#: change of a device's rates that is worth keeping, as a share
_WORTH_KEEPING = 0.05

T = TypeVar("T", int, float)


class CellTook(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One cell that ended."""

    user: str
    #: a hash; None: not known
    source: str | None
    #: device-seconds, more than 0
    seconds: float


class WorkloadHistory:
    """A record of past work, from which sessions' work is predicted for the scheduling core.

    Parameters
    ----------
    directory
        Where the journal is.
    device_kind
        As :class:`~sharedkernel.protocol.Device` has it.
    """

    def __init__(self, directory: Path, device_kind: str) -> None:
        self._journal = Journal(directory / JOURNAL_NAME, CellTook | Rates, schema=_SCHEMA, summarise=self._summarise)
        self._throughput = UtilisationForecast(device_kind)
        #: by user, as the journal has them
        self._kept_rates: dict[str, Rates] = {}
        self._cells: deque[CellTook] = deque(maxlen=_CELLS_KEPT)
        #: whose each session is, and what it said last of the code that runs
        self._work: dict[str, tuple[str, protocol.Foreseen]] = {}

    def open(self) -> events.HistoryRecalled:
        """Read what the executors before this one have learned; return what the core should know of it."""
        for record in self._journal.open():
            if isinstance(record, Rates):
                self._throughput.recall(record)
            elif 0 < record.seconds < math.inf:
                self._cells.append(record)
        self._kept_rates = {rates.user: rates for rates in self._throughput.learned}
        cells = ((UserId(cell.user), cell.source, cell.seconds) for cell in self._cells)
        return events.HistoryRecalled(cells=tuple(cells))

    def close(self) -> None:
        """Keep what is not kept yet."""
        self._journal.close()

    def foresee(self, session: SessionId, user: str, said: protocol.Foreseen) -> events.WorkForeseen:
        """Return what the core should know of what *session* of *user* said."""
        self._work[session] = user, said
        return events.WorkForeseen(
            session=session,
            source=said.source,
            remaining_iterations=_plausible(said.remaining_iterations),
            iteration_seconds=_plausible(said.iteration_seconds),
            utilisation=self._throughput.predict(user, said),
        )

    def measured(self, session: SessionId, utilisation: float) -> None:
        """Record how busy (0 to 1) *session* kept the device while it ran alone."""
        if session not in self._work:
            return
        user, work = self._work[session]
        rates = self._throughput.learn(user, work, utilisation)
        if rates is not None and _is_news(rates, self._kept_rates.get(user)):
            self._kept_rates[user] = rates
            self._journal.add(rates)

    def cell_ended(self, session: SessionId, user: str, source: str | None, seconds: float) -> None:
        """Record that a cell of *session* took *seconds* of the device."""
        self._work.pop(session, None)
        if seconds > 0:
            cell = CellTook(user=user, source=source, seconds=seconds)
            self._cells.append(cell)
            self._journal.add(cell)

    def forget(self, session: SessionId) -> None:
        """Release a session that ended."""
        self._work.pop(session, None)

    def _summarise(self) -> Iterable[CellTook | Rates]:
        self._kept_rates = {rates.user: rates for rates in self._throughput.learned}
        return [*self._cells, *self._kept_rates.values()]


def _plausible(value: T | None) -> T | None:
    """Return *value* unless no honest session could have said it."""
    return value if value is not None and 0 <= value < math.inf else None


def _is_news(rates: Rates, kept: Rates | None) -> bool:
    if kept is None:
        return True
    pairs = (
        (rates.flops_per_second, kept.flops_per_second),
        (rates.bytes_per_second, kept.bytes_per_second),
        (rates.correction, kept.correction),
    )
    return any(abs(new - old) > _WORTH_KEEPING * old for new, old in pairs)
