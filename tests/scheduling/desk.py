"""A scheduler with a clock that stands where it is put, and short names for events."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from sharedkernel.scheduling import MemoryProfile, Scheduler, SchedulerConfig, SessionId, SessionView, UserId
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.actions import Action, Refuse
from sharedkernel.scheduling.model.session import Session
from tests.scheduling.invariants import validate


class Desk:
    """Sends events and checks every invariant after each. The user of a session named "ada1" is "ada"."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.now = 0.0
        #: all events handled, with their times
        self.log: list[tuple[float, events.Event]] = []
        #: what they led to
        self.answers: list[list[Action]] = []
        #: the sessions that events have touched since :meth:`take_touched`
        self._touched: list[SessionId] = []
        self._memory: dict[str, MemoryProfile] = {}

    def send(self, event: events.Event) -> list[Action]:
        actions = self.scheduler.handle(event, now=self.now)
        self.log.append((self.now, event))
        self.answers.append(actions)
        self._touched += self.scheduler.touched
        validate(self.scheduler)
        return actions

    def at(self, now: float) -> Self:
        """Put the clock to *now*."""
        self.now = now
        return self

    def take_touched(self) -> list[SessionId]:
        """Return the sessions that events have touched since this was asked last."""
        touched, self._touched = self._touched, []
        return touched

    def user(
        self,
        user: str,
        *,
        share: float = 1.0,
        quota: int | None = None,
        offload_after: float | None = 30.0,
        priority: int = 0,
    ) -> list[Action]:
        return self.send(
            events.UserConfigured(
                user=UserId(user), share=share, quota=quota, offload_after=offload_after, priority=priority
            )
        )

    def policy(self, policy: str, *, backfill: bool = False) -> list[Action]:
        """Let another policy rank from now on."""
        return self.send(events.PolicyConfigured(policy=policy, backfill=backfill))

    def shelve(self, user: str, size: int) -> list[Action]:
        return self.send(events.ShelfMeasured(user=UserId(user), bytes=size))

    def start(self, *names: str, domain: str = "all", framework: int = 0, attained: float = 0.0) -> None:
        for name in names:
            user = UserId(name.rstrip("0123456789"))
            self.send(
                events.SessionStarted(
                    session=SessionId(name), user=user, domain=domain, framework=framework, attained=attained
                )
            )
            self._memory[name] = MemoryProfile(framework=framework)

    def open(self, *names: str, source: str | None = None) -> None:
        for name in names:
            assert self.send(events.CellOpened(session=SessionId(name), source=source)) == []

    def ready(self, *names: str, source: str | None = None, **started: Any) -> None:
        """Start sessions, and open a cell in each."""
        self.start(*names, **started)
        self.open(*names, source=source)

    def profile(
        self, name: str, *, persistent: int | None = None, ephemeral: int | None = None, needed: int | None = None
    ) -> MemoryProfile:
        """Return the session's last profile with the given changes, and remember it."""
        given = {"persistent": persistent, "ephemeral": ephemeral, "needed": needed}
        changes = {kind: size for kind, size in given.items() if size is not None}
        self._memory[name] = dataclasses.replace(self._memory[name], **changes)
        return self._memory[name]

    def want(
        self,
        name: str,
        ephemeral: int | None = None,
        *,
        persistent: int | None = None,
        growth: int = 0,
        context: int = 0,
        remaining: int | None = None,
        iteration_seconds: float | None = None,
        utilisation: float | None = None,
        is_guess: bool = False,
    ) -> list[Action]:
        profile = self.profile(name, ephemeral=ephemeral, persistent=persistent)
        return self.send(
            events.DeviceWanted(
                context=context,
                session=SessionId(name),
                memory=dataclasses.replace(profile, is_guess=is_guess),
                growth=growth,
                remaining_iterations=remaining,
                iteration_seconds=iteration_seconds,
                utilisation=utilisation,
            )
        )

    def grow(self, name: str, growth: int, *, live: int = 0) -> list[Action]:
        """Interrupt the session's iteration with *live* bytes of it because it needs *growth* more."""
        return self.release(name, "yield", live=live) + self.want(name, growth=growth)

    def withdraw(self, name: str) -> list[Action]:
        return self.send(events.DeviceWantWithdrawn(session=SessionId(name)))

    def release(
        self,
        name: str,
        at: events.ReleasePoint = "boundary",
        *,
        ephemeral: int | None = None,
        persistent: int | None = None,
        needed: int | None = None,
        live: int = 0,
        iterations: int = 0,
        utilisation: float | None = None,
        remaining: int | None = None,
    ) -> list[Action]:
        return self.send(
            events.GrantReleased(
                session=SessionId(name),
                at=at,
                memory=self.profile(name, ephemeral=ephemeral, persistent=persistent, needed=needed),
                live_bytes=live,
                iterations=iterations,
                utilisation=utilisation,
                remaining_iterations=remaining,
            )
        )

    def measure(self, name: str, *, ephemeral: int | None = None, persistent: int | None = None) -> list[Action]:
        memory = self.profile(name, ephemeral=ephemeral, persistent=persistent)
        return self.send(events.MemoryMeasured(session=SessionId(name), memory=memory))

    def use(self, name: str, seconds: float) -> list[Action]:
        """Report that the device was seen to work for the session without a grant."""
        return self.send(events.UsedWithoutGrant(session=SessionId(name), seconds=seconds))

    def close(self, name: str, *, persistent: int | None = None) -> list[Action]:
        memory = self.profile(name, persistent=persistent, needed=0)
        return self.send(events.CellClosed(session=SessionId(name), memory=memory))

    def request_offload(self, name: str) -> list[Action]:
        return self.send(events.OffloadRequested(session=SessionId(name)))

    def offload(self, name: str, *, stays: int = 0) -> list[Action]:
        """Report that the session's memory and what is live was moved away, but for what *stays*."""
        away = self._memory[name].persistent - stays + self.session(name).iteration.live
        memory = self.profile(name, persistent=stays)
        return self.send(events.Offloaded(session=SessionId(name), memory=memory, offloaded=away))

    def detach(self, name: str, detached: bool = True) -> list[Action]:
        return self.send(events.SessionDetached(session=SessionId(name), detached=detached))

    def decline(self, name: str) -> list[Action]:
        return self.send(events.OffloadDeclined(session=SessionId(name)))

    def restored(self, name: str) -> list[Action]:
        """Report that what was moved away is back."""
        persistent = self._memory[name].persistent + self.session(name).offload.size
        return self.send(events.Restored(session=SessionId(name), memory=self.profile(name, persistent=persistent)))

    def not_restored(self, name: str) -> list[Action]:
        """Report that there was no room for what was moved away."""
        return self.send(events.NotRestored(session=SessionId(name), memory=self.profile(name)))

    def interrupt(self, name: str) -> list[Action]:
        """Interrupt a cell whose memory is away."""
        return self.send(events.CellInterrupted(session=SessionId(name)))

    def reopen(self, name: str) -> list[Action]:
        """Open a cell of a session that is offloaded."""
        return self.send(events.CellOpened(session=SessionId(name)))

    def end(self, name: str) -> list[Action]:
        return self.send(events.SessionEnded(session=SessionId(name)))

    def tick(self, now: float | None = None) -> list[Action]:
        if now is not None:
            self.now = now
        return self.send(events.Tick())

    def tick_at_deadline(self) -> list[Action]:
        """Wait until the scheduler asks for attention."""
        deadline = self.scheduler.next_deadline()
        assert deadline is not None
        return self.tick(max(deadline, self.now))

    def begin(self, *names: str, ephemeral: int | None = None, domain: str = "all", **wanted: Any) -> list[Action]:
        """Start sessions, open a cell in each and want the device; return the last answer."""
        actions: list[Action] = []
        for name in names:
            if SessionId(name) not in self.scheduler.sessions:
                self.start(name, domain=domain)
            self.open(name)
            actions = self.want(name, ephemeral, **wanted)
        return actions

    def park(self, name: str, *, ephemeral: int, live: int, rival: int) -> None:
        """Interrupt an iteration for another domain's session, which needs *rival* bytes and ends; *live* ones stay."""
        self.begin(name, ephemeral=ephemeral)
        self.begin("rival", ephemeral=rival, domain="other")
        while self.state(name) != "preempting":
            self.tick_at_deadline()
        self.release(name, "yield", live=live)
        self.finish("rival")

    def finish(self, name: str, **measured: Any) -> list[Action]:
        """Let the session's cell give the device back and end; return the last answer."""
        self.release(name, "cell", **measured)
        return self.close(name)

    def pause(self, name: str, at: events.ReleasePoint = "boundary", **measured: Any) -> list[Action]:
        """Let the session give the device back and want it again; return the last answer."""
        self.release(name, at, **measured)
        return self.want(name)

    def keep(self, *names: str, size: int, **measured: Any) -> None:
        """Start sessions that keep *size* bytes each."""
        for name in names:
            self.start(name)
            self.measure(name, persistent=size, **measured)

    def away(self, name: str, size: int, **measured: Any) -> None:
        """Start a session whose *size* bytes were moved away."""
        self.keep(name, size=size, **measured)
        self.offload(name)

    def session(self, name: str) -> Session:
        """Return the scheduler's record of a session."""
        return self.scheduler.sessions[SessionId(name)]

    def view(self, name: str) -> SessionView:
        """Return the session as people see it now."""
        snapshot = self.scheduler.snapshot(self.now)
        return next(session for session in snapshot.sessions if session.id == name)

    def state(self, name: str) -> str:
        return str(self.view(name).state)

    def attained(self, user: str) -> float:
        snapshot = self.scheduler.snapshot(self.now)
        return next(view.attained for view in snapshot.users if view.id == user)


def refused(actions: Sequence[Action]) -> Refuse:
    """Return the refusal that is the only action."""
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    return refusal
