"""Lanes between real processes: an executor and three sessions, units by descriptor over unix sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.device_memory.drivers.base import MIB
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.selftest.wire import StoreEnd, receive, send, socket_pair
from tests.device_memory import traces
from tests.device_memory.drivers.memfd import MemfdDriver
from tests.device_memory.session_process import dump
from tests.device_memory.support import LANE, open_descriptors

_ROOT = Path(__file__).parents[2]
#: session, its user, what it trains
_SESSIONS = (("a", "ada", "mlp"), ("b", "ada", "tiny transformer"), ("c", "bob", "mlp"))

#: written all over the lane by each user; no replay writes these
_MARKS = {"ada": 252, "bob": 253}


class Remote(StoreEnd):
    """The executor's end of one session."""

    def __init__(self, store: LaneStore, name: str, user: str, trace: Path) -> None:
        connection, theirs = socket_pair()
        super().__init__(store, LANE, name, connection)
        self.user = user
        # bob's sessions do not poison the lane: what they leave there is ada's to scrub
        check_lanes = "check" if user == "ada" else "leave"
        with theirs:
            arguments = [str(theirs.fileno()), name, str(trace), check_lanes]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.device_memory.session_process", *arguments],
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def take_turn(self) -> dict[str, int]:
        must_scrub = self.store.begin_turn(LANE, self.name, self.user)
        foreign = [mark for user, mark in _MARKS.items() if user != self.user]
        result = self.do("take_turn", must_scrub=must_scrub, mark=_MARKS[self.user], foreign_marks=foreign)
        self.store.end_turn(LANE, self.name)
        self.store.validate()
        assert self.store.account().private[self.name] == result["private"]
        return result

    def close(self) -> None:
        if self.process.poll() is None:
            send(self.connection, {"do": "end"})
            while message := receive(self.connection)[0]:
                self.store.take_back(self.name, message["units"])
            assert self.process.wait() == 0
        self.connection.close()


@pytest.fixture
def sessions(tmp_path) -> Iterator[list[Remote]]:
    before = open_descriptors()
    store = LaneStore(MemfdDriver())
    store.create_lane(LANE, 64 * MIB)
    remotes = []
    for name, user, loop in _SESSIONS:
        trace = tmp_path / name
        trace.write_text(dump(traces.record(loop, 8)))
        remotes.append(Remote(store, name, user, trace))
    for remote in remotes:
        remote.answer()
        remote.set_lane()
    yield remotes
    for remote in remotes:
        remote.close()
        store.session_gone(remote.name)
    store.remove_lane(LANE)
    assert store.account().total == 0
    assert open_descriptors() == before


@pytest.mark.heavy
def test_three_processes_train_in_one_lane(sessions):
    """No block is touched, no other user's bytes are seen, no page is counted twice, no descriptor gets about.

    Then one is offloaded and comes back, one is killed in the middle of its turn, and the others go on.
    """
    a, b, c = sessions
    store = a.store
    pages = {remote.name: [remote.take_turn()["pages"]] for remote in sessions}
    for number in range(4):
        for remote in sessions:
            result = remote.take_turn()
            assert result["foreign"] == 0
            pages[remote.name].append(result["pages"])
        if number == 1:
            store.resize_lane(LANE, 80 * MIB)
            for remote in sessions:
                remote.set_lane()
            assert store.account().releasing == 0
    for steps in pages.values():
        # the first is the warm-up's; the second its end; the lane changed after the third
        assert steps[0] > 1
        assert sum(steps[3:]) <= 2, pages
    for remote in sessions:
        found = remote.do("descriptors")
        assert found["inherited"] == 0
        assert found["open"] == found["handles"]
    assert b.do("away_and_back") == store.account().private["b"]
    b.set_lane()
    b.take_turn()
    c.do("hold", must_scrub=store.begin_turn(LANE, c.name, c.user))
    c.process.send_signal(signal.SIGKILL)
    c.process.wait()
    store.session_gone("c")
    assert "c" not in store.account().private
    for remote in (a, b):
        assert remote.take_turn()["foreign"] == 0
    account = store.account()
    assert account.total == account.lanes[LANE] + sum(account.private.values())
