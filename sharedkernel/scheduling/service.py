"""Attained and virtual service: who was served how much, and how that compares.

*Attained* service is what was held, in device-seconds; it is reported and never altered. *Virtual* service is what
fairness compares: a user's grows by the service over the user's share, a session's by its service. Whoever becomes
active (wants the device after not having wanted it) is *lifted* to the smallest virtual service among those who are
active already: a newcomer does not monopolise the device until caught up, and sleeping saves up no credit. With nobody
active, the place of the last one who was is taken (as in start-time fair queueing, where the clock stands still on an
idle device).

Whoever is lifted and has not been served since is *fresh*: policies may serve them at once. Coming back within a
quantum inside one cell does not make fresh: a training loop that gives way and comes back at its next device operation
would otherwise win every tie, and each iteration would switch.
"""

from __future__ import annotations

from sharedkernel.scheduling.model import Session, User, UserId


class ServiceClock:
    """Accrues service to the holders of grants.

    Parameters
    ----------
    quantum
        Seconds of rest after which a session counts as fresh within one cell too.
    """

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        #: until when service is accrued
        self.now = 0.0
        #: all and only the sessions that hold a grant, in the order of their grants
        self.holders: dict[str, Session] = {}
        #: all and only the users with an active session
        self.active: dict[UserId, User] = {}
        #: where a user starts who becomes active alone
        self.floor = 0.0

    def accrue(self, now: float) -> None:
        """Count what was held until *now*."""
        elapsed = now - self.now
        self.now = now
        if not elapsed:
            return
        for session in self.holders.values():
            user = session.user
            session.attained += elapsed
            session.virtual += elapsed
            session.unreported += elapsed
            session.held += elapsed
            user.attained += elapsed
            user.virtual += elapsed / user.share

    def activate(self, session: Session) -> None:
        """Let *session* take part from now on, lifted to those who take part already."""
        user = session.user
        if not user.active:
            floor = min((other.virtual for other in self.active.values()), default=self.floor)
            user.virtual = max(user.virtual, floor)
            user.fresh = not session.started or self.now - user.rested_since >= self.quantum
            self.active[user.id] = user
        floor = min((other.virtual for other in user.active.values()), default=user.floor)
        session.virtual = max(session.virtual, floor)
        session.fresh = not session.started or self.now - session.rested_since >= self.quantum
        user.active[session.id] = session

    def deactivate(self, session: Session) -> None:
        """Let *session* take part no longer."""
        user = session.user
        del user.active[session.id]
        session.rested_since = self.now
        if user.active:
            return
        user.floor = max(user.floor, session.virtual)
        user.rested_since = self.now
        del self.active[user.id]
        if not self.active:
            self.floor = max(self.floor, user.virtual)

    def begin(self, session: Session) -> None:
        """Start counting a grant of *session*."""
        session.came_fresh = session.fresh or session.user.fresh
        session.fresh = session.user.fresh = False
        session.held = 0.0
        session.started = True
        session.user.num_grants += 1
        session.alone = not self.holders
        for other in self.holders.values():
            other.alone = False
        self.holders[session.id] = session

    def end(self, session: Session) -> None:
        """Stop counting the grant of *session*."""
        del self.holders[session.id]
        session.user.num_grants -= 1
