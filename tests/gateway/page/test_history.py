"""What is kept of the last hour."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from sharedkernel.gateway.page.history import NUM_STEPS, UsageHistory
from sharedkernel.status.document import DeviceEntry, DeviceStatus, StatusDocument, UserOnDevice, UserStatus


def document(*used: tuple[str, int]) -> StatusDocument:
    entries = [DeviceEntry(name=name, capacity_bytes=100, used_bytes=size, utilisation=0.0) for name, size in used]
    return StatusDocument(device=DeviceStatus(name="all"), devices=entries)


async def never() -> Any:
    raise NotImplementedError


def test_devices_have_values_at_the_same_times() -> None:
    """One that appears later has gaps before, and one that is away has them meanwhile."""
    history = UsageHistory(never)
    history.record(document(("cuda:0", 1)), now=10.0)
    history.record(document(("cuda:0", 2), ("cuda:1", 3)), now=20.0)
    history.record(None, now=30.0)
    history.record(document(("cuda:1", 4)), now=40.0)
    kept = json.loads(history.to_json())
    assert kept["end"] == 40.0
    assert [(device["name"], device["used_bytes"], device["utilisation"]) for device in kept["devices"]] == [
        ("cuda:0", [1, 2, None, None], [0.0, 0.0, None, None]),
        ("cuda:1", [None, 3, None, 4], [None, 0.0, None, 0.0]),
    ]


def test_an_hour_is_all_that_is_kept() -> None:
    """However long the gateway runs."""
    history = UsageHistory(never)
    for step in range(NUM_STEPS + 100):
        history.record(document(("cuda:0", step)), now=10.0 * step)
    (device,) = json.loads(history.to_json())["devices"]
    assert device["used_bytes"] == list(range(100, NUM_STEPS + 100))


def test_users_are_told_apart() -> None:
    """Those with the most memory, on each device; who had none for an hour is forgotten."""
    history = UsageHistory(never)
    history.record(document(("cuda:0", 1), ("cuda:1", 1)), now=10.0)
    parts = [UserOnDevice(device="cuda:0", persistent_bytes=5, framework_bytes=1), UserOnDevice(device="cuda:1")]
    here = msgspec.structs.replace(document(("cuda:0", 6)), users=[UserStatus(name="ada", devices=parts)])
    history.record(here, now=20.0)
    history.record(None, now=30.0)
    first, second = json.loads(history.to_json())["devices"]
    assert (first["users"], second["users"]) == ({"ada": [0, 6, 0]}, {})
    for step in range(NUM_STEPS):
        history.record(document(("cuda:0", 0)), now=40.0 + 10 * step)
    assert json.loads(history.to_json())["devices"][0]["users"] == {}
    users = [UserStatus(name=f"user-{number:02}", persistent_bytes=number) for number in range(40)]
    alone = UsageHistory(never)
    alone.record(StatusDocument(device=DeviceStatus(name="cuda:0", used_bytes=780), users=users), now=10.0)
    (device,) = json.loads(alone.to_json())["devices"]
    assert list(device["users"]) == [f"user-{number}" for number in range(39, 31, -1)]
