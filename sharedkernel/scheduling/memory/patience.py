"""Patience: the time that claims on memory wait in vain before they are refused.

Memory that cannot move may be released some day, so the refusal waits, above all while other cells are open, which may
end soon or be refused. It counts from a session's first request, however often the session was moved since.

A session that holds memory, was refused and wants the same again in that cell does not wait a second time: its code has
to come to where it frees memory, and on a device that is over its capacity nobody else can run meanwhile.
"""

from __future__ import annotations

import math

from sharedkernel.scheduling.memory.demand import MemoryDemand
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import SessionState


class Patience:
    """Tells until when queued sessions may wait.

    Parameters
    ----------
    config, demand
        The scheduler's.
    """

    def __init__(self, config: SchedulerConfig, demand: MemoryDemand) -> None:
        self.config = config
        self.demand = demand

    def ends(self, session: Session) -> float:
        """Return until when *session* may wait while it holds memory itself, seconds."""
        return session.wait.since + self.config.growth_patience

    def hopeless_from(self, session: Session, now: float) -> float:
        """Return from when on a session waits in vain, for more than it could have if all others moved; else infinity.

        A cell that was offloaded in the middle is not refused before it is back: it can neither continue nor end.

        Parameters
        ----------
        session
            In the memory queue.
        now
            Seconds.
        """
        if session.iteration.growth or session.iteration.live:
            return math.inf
        excess = self.demand.excess(session) + (session.need if session.offload.is_cut_short else 0)
        if excess <= 0:
            session.wait.hopeless_since, session.wait.was_in_vain = None, False
            return math.inf
        if session.wait.was_in_vain and not session.offload.is_cut_short:
            return -math.inf
        if session.wait.hopeless_since is None:
            session.wait.hopeless_since = now
        patience = math.inf if session.offload.is_cut_short else self.config.overtake_patience
        return max(self._refused_from(session, excess), session.wait.hopeless_since + patience)

    def _refused_from(self, session: Session, excess: int) -> float:
        """Return when *session* has lacked *excess* bytes for good for long enough."""
        patience = self.config.overtake_patience
        if session.state is SessionState.WAITING and (session.is_measured or session.context):
            kept, since = self.demand.unmovable_of_others(session)
            if excess > kept:
                # It may ask again for less: its present need may differ from the measured one.
                return max(session.waits_since, since) + patience
        return session.waits_since + self.config.growth_patience + patience
