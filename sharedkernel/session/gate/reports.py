"""Reports to the executor about iterations while a grant is kept."""

from __future__ import annotations

from sharedkernel.ipc.shared_page import Word
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant
from sharedkernel.system.deferred_signals import signals_held


class IterationReports(GatePart):
    """Follows one session's iterations, and sends what the executor does not expect.

    Parameters
    ----------
    parts
        What the gate works with.
    grant
        The session's.
    """

    def __init__(self, parts: GateParts, grant: HeldGrant) -> None:
        super().__init__(parts)
        self._grant = grant

    def record_progress(self, *, is_known: bool) -> None:
        """Record how far the cell is.

        Parameters
        ----------
        is_known
            Whether it is the boundary that delimits iterations; nothing is recorded otherwise.
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
