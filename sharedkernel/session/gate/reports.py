"""Reports to the executor about iterations while a grant is kept."""

from __future__ import annotations

from sharedkernel.ipc.shared_page import Word
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant
from sharedkernel.system.deferred_signals import signals_held


class IterationReports(GatePart):
    """Follows one session's iterations, and sends what the executor does not expect.

    Parameters
    ----------
    parts
        What the gate works with.
    grant, mode
        The session's grant, and the dispatch mode that counts operations while it is in.
    """

    def __init__(self, parts: GateParts, grant: HeldGrant, mode: DeviceMode) -> None:
        super().__init__(parts)
        self._grant = grant
        self._mode = mode

    def count_cost(self, *, is_known: bool) -> None:
        """Record what the iteration cost, if its operations were counted.

        Parameters
        ----------
        is_known
            Whether it is the boundary that delimits iterations.
        """
        if self._mode.is_in:
            self._forecast.cost.boundary_passed(is_known=is_known)

    def record_progress(self, *, is_known: bool) -> None:
        """Record how far the cell is.

        Parameters
        ----------
        is_known
            As in :meth:`count_cost`; nothing is recorded otherwise.
        """
        if is_known:
            with signals_held(), self._link.lock:
                self._forecast.look(self._words[Word.ITERATIONS])

    def send_news(self) -> None:
        """Send what the executor does not expect."""
        with signals_held(), self._link.lock:
            news = (self._forecast.news(self._words[Word.ITERATIONS]), self._grant.news())
            if any(news):
                self._link.send(*(message for message in news if message))

    def count(self, iterations: int) -> None:
        """Record iterations that passed no boundary (main thread).

        Parameters
        ----------
        iterations
            Their number.
        """
        self._words[Word.ITERATIONS] += iterations
        self.record_progress(is_known=True)
        self.send_news()
