"""A store, and sessions over it that are validated and closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.store import LaneStore
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import LANE, Session, open_descriptors, warm_up

MakeSession = Callable[..., Session]


@pytest.fixture
def store() -> Iterator[LaneStore]:
    """Yield a store with one lane; when it is over nothing of it is left."""
    before = open_descriptors()
    store = LaneStore(MemfdDriver())
    store.create_lane(LANE, 96 * MIB)
    yield store
    store.validate()
    if LANE in store.account().lanes:
        store.remove_lane(LANE)
    assert store.account().total == 0
    assert open_descriptors() == before


@pytest.fixture
def make_session(store: LaneStore) -> Iterator[MakeSession]:
    """Yield a function that makes sessions in the lane, warm ones if need be."""
    sessions: list[Session] = []

    def make(name: str, user: str | None = None, *, is_warm: bool = False, **options: Any) -> Session:
        session = Session(store, name, user, **options)
        sessions.append(session)
        session.set_lane()
        if is_warm:
            warm_up(session)
        return session

    yield make
    for session in sessions:
        session.check_all()
        session.validate()
        session.close()
