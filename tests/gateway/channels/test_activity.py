"""Busy or idle, and which cell runs: from published messages alone."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import ProtocolError
from sharedkernel.gateway.channels.activity import KernelActivity
from sharedkernel.gateway.channels.backlog import ANYBODY, Backlog
from sharedkernel.jupyter.session_socket import SessionSocket


def published(message_type: str, parent: dict[str, Any], **content: Any) -> list[bytes]:
    return [json.dumps(part).encode() for part in ({"msg_type": message_type}, parent, {}, content)]


def new_activity() -> KernelActivity:
    return KernelActivity(lambda message_type: message_type in ("execute_request", "comm_msg"))


CELL = {"msg_id": "1", "msg_type": "execute_request"}
COMM = {"msg_id": "2", "msg_type": "comm_msg"}
INFO = {"msg_id": "3", "msg_type": "kernel_info_request"}


def test_busy_lasts_until_everything_begun_has_ended() -> None:
    """A widget's message handled while a cell waits does not make the session idle."""
    activity = new_activity()
    states = []
    for parent, state in ((CELL, "busy"), (COMM, "busy"), (COMM, "idle"), (CELL, "idle")):
        activity.record_message(published("status", parent, execution_state=state))
        states.append((activity.state, activity.running_cell.get("msg_id")))
    assert states == [("busy", "1"), ("busy", "1"), ("busy", "1"), ("idle", None)]
    before = activity.last
    activity.record_message(published("status", INFO, execution_state="busy"))
    assert (activity.state, activity.last) == ("idle", before), "a client that only asks"
    activity.reset(busy=True)
    activity.record_message(published("stream", CELL, text="x"))
    assert activity.state == "busy", "by a gateway that did not hear the beginning"
    activity.record_message(published("status", CELL, execution_state="idle"))
    assert activity.state == "idle"


def test_a_cell_that_was_sent_is_the_one_when_nothing_was_heard_of_it() -> None:
    """A process may die of a cell before it says that it has begun; one that has ended is not it."""
    activity = new_activity()
    activity.record_request(CELL)
    activity.record_request({**CELL, "msg_id": "next"})
    assert (activity.running_cell["msg_id"], activity.state) == ("1", "idle")
    for state in ("busy", "idle"):
        activity.record_message(published("status", CELL, execution_state=state))
    assert activity.running_cell["msg_id"] == "next"
    activity.reset()
    assert activity.running_cell == {}


def test_what_is_no_message_is_refused() -> None:
    """Too few parts, or parts that are no JSON objects."""
    for parts in ([b"{}"], [b"x", b"{}", b"{}", b"{}"], [b"[]"] * 4):
        with pytest.raises(ProtocolError):
            new_activity().record_message(parts)


@given(st.lists(st.binary(max_size=40)), st.integers(0, 200))
def test_a_backlog_holds_the_newest_within_its_limit(messages: list[bytes], limit: int) -> None:
    """The sum of what is held never exceeds the limit; what is missing was counted."""
    backlog = Backlog(ANYBODY, {}, limit_bytes=limit)
    for message in messages:
        backlog.add([message], "stream", [])
        assert sum(len(frame) for (frame,) in backlog.outputs.values()) <= limit
    held = [frame for (frame,) in backlog.outputs.values()]
    assert backlog.num_dropped + len(held) == len(messages)
    assert held == messages[len(messages) - len(held) :]


def update(comm: str, **state: Any) -> list[bytes]:
    """Return the parts of a widget's update."""
    return published("comm_msg", {}, comm_id=comm, data={"method": "update", "state": state})


def test_a_backlog_forgets_the_updates_that_it_drops() -> None:
    """However many values and comms a session names, it costs no more than what is kept."""
    backlog = Backlog(ANYBODY, {}, limit_bytes=10_000)
    tracemalloc.start()
    try:
        for number in range(3000):
            parts = update(f"comm {number % 7 and number}", **{f"{number:01000d}": 0})
            backlog.add(parts, "comm_msg", parts)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    assert backlog.num_dropped + len(backlog.outputs) == 3000


def test_an_update_that_a_later_one_outdates_is_looked_for_among_the_newest() -> None:
    """A session that sets another value each time does not make each update dearer than the one before."""
    backlog = Backlog(ANYBODY, {}, limit_bytes=10**6)
    names = ["far", *(f"value {number}" for number in range(100)), "near", "far", "near"]
    for name in names:
        parts = update("comm", **{name: 0})
        backlog.add(parts, "comm_msg", parts)
    kept = [next(iter(json.loads(parts[3])["data"]["state"])) for parts in backlog.outputs.values()]
    assert kept == [name for place, name in enumerate(names) if place != names.index("near")]


async def test_replies_beyond_the_limit_wait_in_the_channel() -> None:
    """The client that comes back gets all of them, in order; the gateway has held only so many."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as session:
        connected = context.socket(zmq.PAIR)
        session.bind("inproc://replies")
        connected.connect("inproc://replies")
        channel = SessionSocket(connected, "shell")
        backlog = Backlog("ada", {"shell": channel}, limit_bytes=10_000)
        for number in range(100):
            session.send(f"{number:01000d}".encode())
        while len(backlog.replies) < 11:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        told = [int(frame) for _, (frame,) in backlog.replies]
        assert told == list(range(11))
        channel.on_recv(lambda frames: told.append(int(frames[0])))
        while len(told) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert told == list(range(100))
        backlog.close()


def test_requests_that_a_session_makes_up_are_forgotten() -> None:
    """The earliest beyond a thousand, and headers that are no header's length at once."""
    activity = new_activity()
    for number in range(1500):
        activity.record_message(published("status", {**COMM, "msg_id": str(number)}, execution_state="busy"))
    assert activity.running_cell["msg_id"] == "500"
    activity.reset()
    activity.record_message(published("status", {**COMM, "msg_id": "x" * 20_000}, execution_state="busy"))
    assert (activity.running_cell, activity.state) == ({}, "idle")
