"""The status document as a typed structure: other versions' documents, what users see, and its JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sharedkernel.errors import ProtocolError
from sharedkernel.status.document import DeviceEntry, pack_part, read_status
from tests.status.documents import busy_document, document, session, to_json


def test_an_older_document_has_defaults() -> None:
    """What an older executor does not send is there all the same."""
    old = {
        "device": {"name": "a processor", "kind": "host"},
        "sessions": [{"id": "a", "user": "ada", "state": "idle"}],
        "users": [{"name": "ada"}],
    }
    status = read_status(old, "an executor")
    assert (status.device.capacity_bytes, status.device.lanes_shared) == (0, msgspec.UNSET)
    assert (status.sessions[0].offloads, status.sessions[0].queue_position) == (0, None)
    assert (status.users[0].share, status.lanes, status.devices) == (1.0, [], msgspec.UNSET)
    assert list(status.by_device()) == ["a processor"]


def test_a_newer_document_is_read_without_what_is_new() -> None:
    """Unknown fields are ignored wherever they are."""
    new = to_json(busy_document()) | {"weather": "rain"}
    new["device"]["colour"] = new["sessions"][0]["mood"] = "blue"
    assert read_status(new, "an executor") == busy_document()


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"device": {"name": 1}},
        {"device": {"name": "a"}, "sessions": [{"id": "a", "user": "ada", "state": "idle", "lane": "one"}]},
        msgspec.Raw(b"\xc1"),
        msgspec.Raw(b"\x91" * 5000),
    ],
)
def test_a_bad_document_is_one_sentence(data: Any) -> None:
    """It says who sent it, what is wrong with it, and what to do."""
    with pytest.raises(ProtocolError, match=r"^the gateway sent no status document that .* can read \(.*\).*\.$"):
        read_status(data, "the gateway")


def test_a_document_is_the_same_after_each_way_that_it_goes() -> None:
    """Packed between processes, and as JSON: absent fields stay absent, and null stays null."""
    status = busy_document()
    assert read_status(pack_part(status), "an executor") == status
    text = msgspec.json.encode(status)
    assert read_status(json.loads(text), "a gateway") == status
    assert "devices" not in json.loads(text)
    assert "lanes_shared" not in json.loads(text)["device"]
    assert json.loads(text)["sessions"][0]["queue_position"] is None


def test_users_see_nothing_of_the_others_notebooks() -> None:
    """Neither path nor kernel nor key; all else is the same for everybody."""
    known = {"notebook": "secret.ipynb", "kernel_id": "k", "client_key": "c"}
    status = document(sessions=[session("a", "ada", **known), session("b", "bob", **known)])
    own, other = to_json(status.visible_to("ada").sessions)
    whole = to_json(status.sessions)
    assert own == whole[0]
    assert other == {**whole[1], "notebook": None, "kernel_id": None, "client_key": None}


def test_a_device_that_is_away_has_its_entry_only() -> None:
    """Of those that answer there is a document each."""
    devices = [{"name": "cuda:0", "capacity_bytes": 7}, {"name": "cuda:1", "available": False, "message": "gone."}]
    documents = document(devices=devices).by_device()
    assert list(documents) == ["cuda:0", "cuda:1"]
    assert isinstance(documents["cuda:1"], DeviceEntry)
    assert not isinstance(documents["cuda:0"], DeviceEntry)
    assert documents["cuda:0"].device.capacity_bytes == 7
