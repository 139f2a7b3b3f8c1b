"""The driver of the core: a decision that cannot be carried out is reported, and no other is lost with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from sharedkernel.errors import InvalidTransition
from sharedkernel.executor.dispatch.driver import Counters, Effects, SchedulerDriver
from sharedkernel.scheduling import Scheduler, SchedulerConfig, SessionId, SessionState
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.model.types import HOLDING_STATES
from tests.scheduling.desk import Desk
from tests.scheduling.invariants import validate

MIB = 1 << 20
CONFIG = SchedulerConfig(capacity=1000 * MIB)


class Record:
    """Keeps what is recorded, in the order in which it is."""

    def __init__(self) -> None:
        self.events: list[tuple[float, events.Event]] = []

    def begin(self, now: float, config: SchedulerConfig) -> None:
        self.events.clear()

    def record(self, now: float, event: events.Event) -> None:
        self.events.append((now, event))

    def close(self) -> None:
        """Nothing to write."""


class Sessions:
    """Carries actions out, but for the first of one kind."""

    def __init__(self, record: Record, fails: type[actions.Action] | None, *, later: bool = False) -> None:
        self._record = record
        self._fails = fails
        self._later = later
        #: all that were to be carried out
        self.tried: list[actions.Action] = []
        #: how many events had been recorded at the time of each
        self.num_recorded: list[int] = []
        self.granted: set[SessionId] = set()
        self.disconnected: list[SessionId] = []

    def act(self, action: actions.Action) -> Effects:
        self.tried.append(action)
        self.num_recorded.append(len(self._record.events))
        if type(action) is self._fails:
            self._fails = None
            if self._later:
                return Effects(rest=self._fail())
            raise OSError("no room on the device")
        if isinstance(action, actions.Grant):
            self.granted.add(action.session)
        return Effects()

    async def _fail(self) -> None:
        raise OSError("no room on the device")

    def disconnect(self, session: SessionId) -> None:
        self.disconnected.append(session)


class Driven(Desk):
    """A desk whose events go through a driver."""

    def __init__(self, fails: type[actions.Action] | None, *, later: bool = False) -> None:
        super().__init__(CONFIG)
        # time stands where it is put
        asyncio.get_running_loop().time = lambda: self.now  # type: ignore[method-assign]
        self.record = Record()
        self.target = Sessions(self.record, fails, later=later)
        self.driver = SchedulerDriver(self.scheduler, self.record, self.target, Counters())

    def send(self, event: events.Event) -> list[actions.Action]:
        before = len(self.target.tried)
        self.driver.handle(event)
        validate(self.scheduler)
        return self.target.tried[before:]

    def replay(self, number: int | None = None) -> list[actions.Action]:
        """Return what another scheduler decides on the recorded events, or the first *number* of them."""
        scheduler, recorded = Scheduler(CONFIG), self.record.events[:number]
        return [action for now, event in recorded for action in scheduler.handle(event, now=now)]

    def holders(self) -> set[SessionId]:
        return {session.id for session in self.scheduler.sessions.values() if session.state in HOLDING_STATES}


def begins(desk: Driven) -> None:
    desk.begin("ada", ephemeral=100 * MIB)


def is_preempted(desk: Driven) -> None:
    desk.begin("ada", "bob", ephemeral=100 * MIB)
    while actions.StopProcess(session=SessionId("ada")) not in desk.target.tried:
        desk.tick_at_deadline()


def wants_too_much(desk: Driven) -> None:
    desk.begin("ada", ephemeral=2000 * MIB)


def moves_out(desk: Driven) -> None:
    desk.keep("ada", size=500 * MIB)
    desk.request_offload("ada")


def comes_back(desk: Driven) -> None:
    moves_out(desk)
    desk.offload("ada")
    desk.reopen("ada")


def is_called(desk: Driven) -> None:
    desk.ready("bob")
    desk.measure("bob", persistent=700 * MIB)
    desk.keep("ada", size=700 * MIB)
    desk.offload("ada")
    desk.at(100.0).reopen("ada")
    desk.tick_at_deadline()


def shrinks(desk: Driven) -> None:
    begins(desk)
    desk.release("ada", ephemeral=50 * MIB)


def leaves_no_room(desk: Driven) -> None:
    begins(desk)
    desk.release("ada", persistent=980 * MIB)


SCENES: dict[type[actions.Action], Callable[[Driven], None]] = {
    actions.Grant: begins,
    actions.CreateLane: begins,
    actions.Revoke: is_preempted,
    actions.ForceYield: is_preempted,
    actions.StopProcess: is_preempted,
    actions.Refuse: wants_too_much,
    actions.Offload: moves_out,
    actions.Restore: comes_back,
    actions.Summon: is_called,
    actions.ResizeLane: shrinks,
    actions.RemoveLane: leaves_no_room,
}


@pytest.mark.parametrize("kind", SCENES)
async def test_one_failure_loses_no_decision(kind: type[actions.Action], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever kind of action fails: all others are tried, the log, written before, replays to them; the core knows."""
    desk = Driven(kind)
    with caplog.at_level(logging.ERROR):
        SCENES[kind](desk)
    assert "was not carried out" in caplog.text
    assert desk.replay() == desk.target.tried
    assert all(
        action in desk.replay(number)
        for action, number in zip(desk.target.tried, desk.target.num_recorded, strict=True)
    )
    assert desk.holders() <= desk.target.granted
    failed = next(action for action in desk.target.tried if type(action) is kind)
    assert desk.target.disconnected == ([failed.session] if hasattr(failed, "session") else [])
    desk.driver.stop()


def test_every_kind_of_action_is_tried() -> None:
    """A new one needs a scene."""
    bases = {actions.Action, actions.SessionAction}
    classes = {kind for kind in vars(actions).values() if isinstance(kind, type) and issubclass(kind, actions.Action)}
    assert set(SCENES) == classes - bases


async def test_a_grant_that_fails_later_leaves_the_device_to_others() -> None:
    """Its lane took a while to make, and was not made."""
    desk = Driven(actions.Grant, later=True)
    begins(desk)
    desk.begin("bob", ephemeral=100 * MIB)
    assert desk.holders() == {"ada"}
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*others)
    validate(desk.scheduler)
    assert desk.target.disconnected == ["ada"]
    assert desk.holders() == desk.target.granted == {"bob"}
    assert desk.replay() == desk.target.tried
    desk.driver.stop()


async def test_what_fails_to_move_is_where_it_was() -> None:
    """A session that was not asked to offload keeps its memory; one that was not restored is, when it says so, away."""
    desk = Driven(actions.Offload)
    moves_out(desk)
    assert not desk.scheduler.sessions[SessionId("ada")].offload.is_asked
    desk = Driven(actions.Restore)
    comes_back(desk)
    assert desk.state("ada") == SessionState.OFFLOADED
    # As a session is taken over that connects again.
    desk.reopen("ada")
    desk.restored("ada")
    desk.close("ada")
    desk.offload("ada")
    assert desk.scheduler.ledger.used == 0
    assert actions.Restore(session=SessionId("ada")) in desk.reopen("ada")
    desk.driver.stop()


async def test_an_event_that_is_not_allowed_costs_nobody_else_anything() -> None:
    """Its sender hears of it; the next event is handled."""
    desk = Driven(None)
    begins(desk)
    with pytest.raises(InvalidTransition):
        desk.want("ada")
    desk.release("ada")
    assert desk.replay() == desk.target.tried
    desk.driver.stop()


async def test_figures_alone_are_no_change() -> None:
    """Who draws whenever something changes would else draw at each report of a training, once a second."""
    desk = Driven(None)
    begins(desk)
    change = asyncio.create_task(desk.driver.wait_for_change())
    await asyncio.sleep(0)
    desk.send(events.GrantMeasured(session=SessionId("ada"), iterations=7, utilisation=0.5))
    desk.measure("ada", persistent=50 * MIB)
    await asyncio.sleep(0)
    assert not change.done()
    desk.release("ada")
    await change
    desk.driver.stop()
