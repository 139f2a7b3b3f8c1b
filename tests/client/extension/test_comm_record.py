"""What is kept of widgets for a page that comes meanwhile; `tests/browser/test_reload.py` loads one anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharedkernel.client.extension.records import CommRecords
from sharedkernel.jupyter import wire

Message = dict[str, Any]


def told(kind: str, content: Message, *buffers: bytes, session: str = "kernel") -> list[bytes]:
    return [*wire.new_message(kind, content, session=session), *buffers]


def take(records: CommRecords, kind: str, content: Message, *buffers: bytes, session: str = "kernel") -> None:
    records.take({"msg_type": kind, "session": session}, content, buffers)


def open_model(records: CommRecords, comm: str, data: Message, *buffers: bytes) -> None:
    take(records, "comm_open", {"comm_id": comm, "target_name": "jupyter.widget", "data": data}, *buffers)


def state_of(records: CommRecords, comm: str) -> Any:
    """Return a model's state, and its buffers with their paths; None if there is no answer."""
    for _, parts in records.answer(told("comm_msg", {"comm_id": comm, "data": {"method": "request_state"}})):
        data = json.loads(parts[3])["data"]
        return data["state"], list(zip(data["buffer_paths"], parts[4:], strict=True))
    return None


@pytest.fixture
def records() -> CommRecords:
    """Return those of a kernel whose first cell has begun."""
    records = CommRecords(max_bytes=10_000)
    take(records, "execute_input", {"execution_count": 1})
    return records


def test_a_state_is_what_all_messages_have_set(records: CommRecords) -> None:
    """With buffers, which go with the value that they are part of; those of pages count, too."""
    open_model(records, "a", {"state": {"value": 1, "images": [{}]}, "buffer_paths": [["images", 0, "png"]]}, b"one")
    update = {"method": "update", "state": {"value": 2}, "buffer_paths": []}
    take(records, "comm_msg", {"comm_id": "a", "data": update})
    assert state_of(records, "a") == ({"value": 2, "images": [{}]}, [(["images", 0, "png"], b"one")])
    records.take_from_page(told("comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {"value": 3}}}))
    changed = {"method": "update", "state": {"images": [{}, {}]}, "buffer_paths": [["images", 1, "png"]]}
    take(records, "comm_msg", {"comm_id": "a", "data": changed}, b"two")
    assert state_of(records, "a") == ({"value": 3, "images": [{}, {}]}, [(["images", 1, "png"], b"two")])
    take(records, "comm_close", {"comm_id": "a"})
    assert state_of(records, "a") is None


def test_a_process_whose_beginning_was_not_heard_answers_itself(records: CommRecords) -> None:
    """As one that takes the place of another; what is known of that is not its own."""
    open_model(records, "a", {"state": {"value": 1}})
    take(records, "execute_input", {"execution_count": 0}, session="not the kernel")
    assert state_of(records, "a") is not None
    take(records, "execute_input", {"execution_count": 7}, session="an earlier one")
    assert state_of(records, "a") is None
    take(records, "execute_input", {"execution_count": 1}, session="a new one")
    assert state_of(records, "a") is None
    assert json.loads(records.answer(told("comm_info_request", {"target_name": "jupyter.widget"}))[0][1][3]) == {
        "status": "ok",
        "comms": {},
    }


def test_beyond_the_limit_nothing_is_answered(records: CommRecords) -> None:
    """Not a part, either: a page takes what is missing for closed. A value that is set anew counts once."""
    for number in range(100):
        open_model(records, "a", {"state": {"value": f"{number:5000}"}})
        take(records, "comm_close", {"comm_id": "a"})
    open_model(records, "a", {"state": {"value": ""}})
    for number in range(100):
        take(records, "comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {"value": f"{number:5000}"}}})
    assert state_of(records, "a") is not None
    open_model(records, "b", {"state": {"value": "x" * 6000}})
    assert state_of(records, "a") is None
    assert records.answer(told("comm_info_request", {"target_name": "jupyter.widget"})) == []


def test_odd_messages_do_no_harm(records: CommRecords) -> None:
    """User code may send anything; a page may name the subshell where the widget was used, which is behind the cell."""
    for data in (None, 7, {"state": 7}, *({"state": {}, "buffer_paths": odd} for odd in (7, [7, []]))):
        open_model(records, "a", data, b"1", b"2")
        take(records, "comm_msg", {"comm_id": "a", "data": data})
        assert state_of(records, "a") is not None
    request = told("comm_msg", {"comm_id": "a", "data": {"method": "request_state"}})
    request[0] = json.dumps(json.loads(request[0]) | {"subshell_id": "one"}).encode()
    assert records.answer(request)
