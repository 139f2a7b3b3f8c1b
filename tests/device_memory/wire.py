"""What the tests' executor and its session processes say to each other: JSON, with descriptors beside it."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from sharedkernel.device_memory.layout import GivenUnit, UnitInfo
from sharedkernel.device_memory.store import MAX_DESCRIPTORS

_MAX_BYTES = 1 << 20


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message; an empty one when the peer is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(
            connection, _MAX_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )  # fmt: skip
    except ConnectionError:
        return {}, []
    return (json.loads(data) if data else {}), descriptors


def receive_units(connection: socket.socket, count: int) -> list[GivenUnit]:
    """Return so many units, which come in batches."""
    given: list[GivenUnit] = []
    while len(given) < count:
        message, descriptors = receive(connection)
        for (unit, size), descriptor in zip(message["units"], descriptors, strict=True):
            given.append(GivenUnit(unit, size, descriptor))
    return given


def names(units: Sequence[UnitInfo]) -> list[tuple[int, int]]:
    return [(unit.unit, unit.size) for unit in units]
