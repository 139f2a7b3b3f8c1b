"""The same events lead to the same actions, from a log too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling import Scheduler, SchedulerConfig, UserId
from sharedkernel.scheduling.model.events import ShelfMeasured, from_dict, to_dict
from tests.scheduling.device import Cell, Device, Notebook, endless


def busy_device() -> Device:
    """Return a device after 30 seconds of everything: sharing, waiting, parking, two domains, unmeasured needs."""
    notebooks = [
        endless("ada1", 0.2, ephemeral=600, domain="x"),
        endless("ada2", 1e9, ephemeral=300, has_boundaries=False),
        Notebook(name="bob", cells=[Cell(seconds=0.01, pause=0.31, persistent=20) for _ in range(60)]),
        Notebook(name="cleo", domain="y", cells=[Cell(seconds=0.05, iterations=50, ephemeral=500, pause=0.1)] * 5),
    ]
    config = SchedulerConfig(capacity=1000, parallel_lanes=2, utilisation_limit=2.0)
    device = Device(config, notebooks, is_measured=False)
    device.desk.user("bob", share=2.5, quota=900)
    device.run(20)
    device.switch("las")
    device.run(30)
    for name in device.notebooks:
        device.desk.end(name)
    return device


def crowded_device() -> Device:
    """Return a device after four notebooks that keep twice what there is, grow into it, and are moved away in turn."""
    mib = 1 << 20
    notebooks = [
        Notebook(
            name=name,
            declines=name == "dan",
            cells=[
                Cell(seconds=0.05, ephemeral=5 * mib, growth=growth * mib, persistent=45 * mib, pause=0.2 * number)
                for growth in (45, 0, 0)
            ],
        )
        for number, name in enumerate(("ada", "bob", "cleo", "dan"), start=1)
    ]
    config = SchedulerConfig(capacity=100 * mib)
    device = Device(config, notebooks, offload_after=0.0, may_refuse=True)
    device.desk.shelve("ada", 2 * mib)
    device.run()
    device.desk.request_offload("bob")
    device.desk.start("eve")
    device.desk.measure("eve", persistent=mib)
    device.desk.request_offload("eve")
    device.desk.offload("eve")
    device.desk.reopen("eve")
    return device


@pytest.mark.parametrize(("make", "num_events"), [(busy_device, 400), (crowded_device, 60)])
def test_a_log_replays_to_identical_actions(make: Callable[[], Device], num_events: int) -> None:
    """Events written as JSON lines and read back drive a new scheduler to every single action again."""
    desk = make().desk
    assert len(desk.log) > num_events
    lines = [json.dumps({"now": now, **to_dict(event)}) for now, event in desk.log]
    scheduler = Scheduler(desk.config)
    for line, answer in zip(lines, desk.answers, strict=True):
        plain = json.loads(line)
        now = plain.pop("now")
        assert scheduler.handle(from_dict(plain), now=now) == answer
    assert scheduler.snapshot(100.0) == desk.scheduler.snapshot(100.0)


@pytest.mark.parametrize(
    ("plain", "part"),
    [
        ({"event": "Explosion"}, "'Explosion' is not the name of a scheduler event"),
        ({"now": 1}, "None is not the name"),
        ({"event": ["Tick"]}, "is not the name"),
        ({"event": "CellOpened"}, "is not a CellOpened event"),
        ({"event": "CellOpened", "session": "a", "colour": "red"}, "colour"),
        ({"event": "CellClosed", "session": "a", "memory": {"size": 3}}, "is not a CellClosed event"),
        ({"event": "CellClosed", "session": "a", "memory": {"persistent": -3}}, "negative"),
        ({"event": "UserConfigured", "user": "a", "share": 0}, "share of user a is 0"),
        (
            {"event": "PolicyConfigured", "policy": "fare"},
            "unknown policy 'fare'; choose one of fair, fifo, gittins",
        ),
        ({"event": "PolicyConfigured", "policy": "las", "backfill": True}, "backfill belongs to the policy fifo"),
        ({"event": "DeviceWanted", "session": "a", "remaining_iterations": -1}, "session a has -1 iterations left"),
        ({"event": "DeviceWanted", "session": "a", "iteration_seconds": -1}, "predicted iterations of -1 seconds"),
        ({"event": "DeviceWanted", "session": "a", "utilisation": 2}, "has a utilisation of 2"),
        ({"event": "UserConfigured", "user": "a", "quota": -1}, "quota of user a is -1 bytes"),
        ({"event": "UserConfigured", "user": "a", "offload_after": -1}, "offload_after of user a is -1"),
        ({"event": "ShelfMeasured", "user": "a", "bytes": -1}, "the shelf of user a holds -1 bytes"),
        ({"event": "DeviceWanted", "session": "a", "growth": -1}, "session a wants to grow by -1 bytes"),
        ({"event": "Offloaded", "session": "a", "memory": {}, "offloaded": -1}, "session a offloaded -1 bytes"),
        ({"event": "SessionStarted", "session": "a", "user": "b", "domain": "c", "framework": -1}, "negative"),
        ({"event": "UsedWithoutGrant", "session": "a", "seconds": -1}, "used the device for -1 seconds"),
        ({"event": "GrantReleased", "session": "a", "at": "noon", "memory": {}}, "not at 'noon'"),
        ({"event": "GrantReleased", "session": "a", "at": "cell", "memory": {}, "live_bytes": -1}, "negative"),
        ({"event": "GrantReleased", "session": "a", "at": "cell", "memory": {}, "utilisation": 2}, "utilisation of 2"),
    ],
)
def test_what_is_no_event_is_refused_with_a_sentence(plain: dict[str, object], part: str) -> None:
    """A damaged log is told from a scheduler's bug."""
    with pytest.raises(ValueError, match=re.escape(part)) as caught:
        from_dict(plain)
    assert str(caught.value).endswith(".")


def test_time_does_not_go_back() -> None:
    """An event from the past is a caller's bug and changes nothing."""
    scheduler = Scheduler(SchedulerConfig(capacity=10))
    scheduler.handle(from_dict({"event": "Tick"}), now=5.0)
    with pytest.raises(ValueError, match=r"went back from 5\.0 to 4\.0"):
        scheduler.handle(from_dict({"event": "UserConfigured", "user": "ada"}), now=4.0)
    assert scheduler.snapshot(5.0).users == ()


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"capacity": 0}, "capacity is 0 bytes"),
        ({"reserve": 10}, "less than the capacity"),
        ({"reserve": -1}, "at least 0"),
        ({"policy": "fare"}, "unknown policy 'fare'; choose one of fair, fifo"),
        ({"quantum": 0.0}, "quantum is 0.0"),
        ({"preempt_patience": float("nan")}, "preempt_patience is nan"),
        ({"overtake_patience": -1.0}, "overtake_patience"),
        ({"growth_patience": 0.0}, "growth_patience is 0.0"),
        ({"utilisation_limit": float("inf")}, "utilisation_limit"),
        ({"parallel_lanes": 0}, "parallel_lanes is 0"),
        ({"backfill": True}, "backfill belongs to the policy fifo"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(values: dict[str, object], part: str) -> None:
    """One sentence says what was wrong and what is accepted."""
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(**{"capacity": 10, **values})  # type: ignore[arg-type]
    assert part in str(caught.value)


@pytest.mark.parametrize("make", [busy_device, crowded_device])
def test_what_is_remembered_of_the_line_is_what_would_be_found_anew(make: Callable[[], Device]) -> None:
    """A scheduler that has to look at the whole line again after each event decides the same."""
    desk = make().desk
    scheduler = Scheduler(desk.config)
    nothing_new = ShelfMeasured(user=UserId("nobody"), bytes=0)
    for (now, event), answer in zip(desk.log, desk.answers, strict=True):
        assert scheduler.handle(event, now=now) == answer
        assert scheduler.handle(nothing_new, now=now) == []
