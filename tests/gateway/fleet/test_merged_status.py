"""One status document made of several: sums that hold, names that stay apart."""

from __future__ import annotations

from typing import Any

from sharedkernel.gateway.fleet.merged_status import away_entry, merge
from sharedkernel.protocol import Device
from sharedkernel.status.document import DeviceEntry, read_status
from tests.status.documents import to_json


def user(name: str, amount: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "share": 1.0, "quota_bytes": 100, "persistent_bytes": amount, "ephemeral_bytes": 2 * amount,
        "framework_bytes": 3, "shelf_bytes": 0, "attained_service_seconds": 0.5, "iterations": 7, "peak_bytes": amount,
        "wait_p50_seconds": None, **fields,
    }  # fmt: skip


def document(name: str, *users: dict[str, Any], **device: Any) -> dict[str, Any]:
    return {
        "device": {
            "name": name, "kind": "cuda", "capacity_bytes": 100, "reserve_bytes": 5, "used_bytes": 30,
            "policy": "fair", "quantum_seconds": 0.05, "lanes_shared": True, **device,
        },
        "lanes": [{"id": number, "size_bytes": 10, "holder": None, "queue": []} for number in (1, 2)],
        "users": list(users),
        "sessions": [
            {"id": f"{name}-s", "user": "ada", "state": "queued", "lane": 2},
            {"id": f"{name}-t", "user": "ada", "state": "idle", "lane": None},
        ],
    }  # fmt: skip


def merged(*documents: dict[str, Any], away: dict[str, DeviceEntry] | None = None) -> Any:
    """Return the JSON of the merged document."""
    by_name = {f"cuda:{number}": read_status(found, "a test") for number, found in enumerate(documents)}
    return to_json(merge(by_name, away or {}, [*by_name, *(away or {})], "allox"))


def test_the_device_sums_up_those_that_answer() -> None:
    """Bytes are sums; policies and kinds are all told; the longest quantum; the rest if they agree."""
    status = merged(document("A"), document("B", policy="fifo", quantum_seconds=0.1, lanes_shared=False))
    assert status["device"] == {
        "name": "cuda:0 + cuda:1", "kind": "cuda", "capacity_bytes": 200, "reserve_bytes": 10, "used_bytes": 60,
        "policy": "fair, fifo", "quantum_seconds": 0.1,
    }  # fmt: skip
    assert merged(document("A"), document("A"))["device"]["lanes_shared"] is True
    assert status["placement"] == "allox"
    one, other = status["devices"]
    assert (one["name"], one["description"], one["available"], one["num_sessions"]) == ("cuda:0", "A", True, 2)
    assert document("B")["device"].keys() <= other.keys(), "an entry like the only one has"
    assert (other["policy"], other["capacity_bytes"]) == ("fifo", 100)


def test_lanes_and_sessions_say_where_they_are() -> None:
    """Lanes of two devices have numbers of their own; a session's lane is one of those."""
    status = merged(document("A"), document("B"))
    assert len({lane["id"] for lane in status["lanes"]}) == 4
    assert [lane["number"] for lane in status["lanes"]] == [1, 2, 1, 2]
    lanes = {lane["id"]: (lane["device"], lane["number"]) for lane in status["lanes"]}
    assert [session["device"] for session in status["sessions"]] == ["cuda:0"] * 2 + ["cuda:1"] * 2
    for session in status["sessions"]:
        assert session["lane"] is None or lanes[session["lane"]] == (session["device"], 2)


def test_users_are_summed_up_and_told_by_device() -> None:
    """A full device shows in `devices`; who is known to one executor only has nothing elsewhere."""
    status = merged(
        document("A", user("ada", 90, wait_p50_seconds=0.5), user("grace", 1)),
        document("B", user("ada", 4, wait_p50_seconds=0.2)),
    )
    ada, grace = status["users"]
    assert (ada["persistent_bytes"], ada["ephemeral_bytes"], ada["quota_bytes"]) == (94, 188, 200)
    assert (ada["share"], ada["iterations"], ada["attained_service_seconds"]) == (1.0, 14, 1.0)
    assert (ada["peak_bytes"], ada["wait_p50_seconds"]) == (90, 0.5)
    assert [(entry["device"], entry["persistent_bytes"], entry["quota_bytes"]) for entry in ada["devices"]] == [
        ("cuda:0", 90, 100),
        ("cuda:1", 4, 100),
    ]
    assert (grace["persistent_bytes"], grace["quota_bytes"], grace["wait_p50_seconds"]) == (1, 100, None)


def test_what_is_away_is_listed_and_not_summed() -> None:
    """With what was known of it; nothing is made up for what never answered."""
    seen = Device(name="C", kind="cuda", capacity_bytes=100, reserve_bytes=5)
    away = {"x": away_entry("x", seen, 3, "Start it."), "y": away_entry("y", None, 0, "Start it.")}
    status = merged(document("A"), away=away)
    assert status["device"]["name"] == "cuda:0"
    assert status["device"]["capacity_bytes"] == 100
    _, x, y = status["devices"]
    assert (x["capacity_bytes"], x["used_bytes"], x["available"], x["num_sessions"]) == (100, None, False, 3)
    assert (y["description"], y["capacity_bytes"], y["message"]) == (None, None, "Start it.")
    assert x.keys() == y.keys()
    assert len({lane["id"] for lane in status["lanes"]}) == 2
