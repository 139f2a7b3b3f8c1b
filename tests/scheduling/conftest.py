"""Tools for testing the scheduling core: a scheduler whose invariants are checked after every event."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sharedkernel.scheduling import SchedulerConfig
from tests.scheduling.desk import Desk
from tests.scheduling.invariants import validate


@pytest.fixture
def make_sched() -> Iterator[Callable[..., Desk]]:
    """Make schedulers with the given configuration; each is validated at teardown too."""
    desks: list[Desk] = []

    def make(**config: object) -> Desk:
        values: dict[str, object] = {"capacity": 1000, **config}
        desks.append(Desk(SchedulerConfig(**values)))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for desk in desks:
        validate(desk.scheduler)


@pytest.fixture
def sched(make_sched: Callable[..., Desk], request: pytest.FixtureRequest) -> Desk:
    """Return a scheduler of a device with 1000 bytes, or as many as the module names, and one running lane."""
    return make_sched(capacity=getattr(request.module, "CAPACITY", 1000))
