"""Busy or idle, and which cell runs: from published messages alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.errors import ProtocolError
from sharedkernel.gateway.activity import Activity
from sharedkernel.gateway.backlog import ANYBODY, Backlog


def published(message_type: str, parent: dict[str, Any], **content: Any) -> list[bytes]:
    return [json.dumps(part).encode() for part in ({"msg_type": message_type}, parent, {}, content)]


def new_activity() -> Activity:
    return Activity(lambda message_type: message_type in ("execute_request", "comm_msg"))


CELL = {"msg_id": "1", "msg_type": "execute_request"}
COMM = {"msg_id": "2", "msg_type": "comm_msg"}
INFO = {"msg_id": "3", "msg_type": "kernel_info_request"}


def test_busy_lasts_until_everything_begun_has_ended() -> None:
    """A widget's message handled while a cell waits does not make the session idle."""
    activity = new_activity()
    states = []
    for parent, state in ((CELL, "busy"), (COMM, "busy"), (COMM, "idle"), (CELL, "idle")):
        activity.hear(published("status", parent, execution_state=state))
        states.append((activity.state, activity.running_cell.get("msg_id")))
    assert states == [("busy", "1"), ("busy", "1"), ("busy", "1"), ("idle", None)]


def test_a_cell_that_was_sent_is_the_one_when_nothing_was_heard_of_it() -> None:
    """A process may die of a cell before it says that it has begun; one that has ended is not it."""
    activity = new_activity()
    activity.ask(CELL)
    activity.ask({**CELL, "msg_id": "next"})
    assert (activity.running_cell["msg_id"], activity.state) == ("1", "idle")
    for state in ("busy", "idle"):
        activity.hear(published("status", CELL, execution_state=state))
    assert activity.running_cell["msg_id"] == "next"
    activity.start()
    assert activity.running_cell == {}


def test_questions_of_clients_are_no_activity() -> None:
    """A client that only asks does not keep a session from being called idle."""
    activity = new_activity()
    before = activity.last
    activity.hear(published("status", INFO, execution_state="busy"))
    assert (activity.state, activity.last) == ("idle", before)


def test_a_session_found_in_a_cell_is_busy_until_that_ends() -> None:
    """A gateway that did not hear the beginning hears the end."""
    activity = new_activity()
    activity.start(busy=True)
    activity.hear(published("stream", CELL, text="x"))
    assert activity.state == "busy"
    activity.hear(published("status", CELL, execution_state="idle"))
    assert activity.state == "idle"


def test_what_is_no_message_is_refused() -> None:
    """Too few parts, or parts that are no JSON objects."""
    for parts in ([b"{}"], [b"x", b"{}", b"{}", b"{}"], [b"[]"] * 4):
        with pytest.raises(ProtocolError):
            new_activity().hear(parts)


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
