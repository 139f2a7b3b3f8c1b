"""Units of device memory between processes without an executor: JSON over unix sockets, with descriptors beside it."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from sharedkernel.device_memory.layout import GivenUnit, UnitInfo
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.ipc.seqpacket import receive_packet

_MAX_BYTES = 1 << 20


class PeerEnded(RuntimeError):
    """The process at the other end is gone."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message.

    Parameters
    ----------
    connection
        One end of :func:`socket_pair`.
    message
        Anything that JSON has.
    descriptors
        Copies of them travel with it.
    """
    socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message; an empty one when the peer is gone."""
    try:
        data, descriptors = receive_packet(connection, most=_MAX_BYTES)
    except ConnectionError:
        return {}, []
    return (json.loads(data) if data else {}), descriptors


def receive_units(connection: socket.socket, count: int) -> list[GivenUnit]:
    """Receive units of device memory, which come in batches.

    Parameters
    ----------
    connection
        One end of :func:`socket_pair`.
    count
        How many.

    Raises
    ------
    PeerEnded
        When the other end refuses, or has ended.
    """
    given: list[GivenUnit] = []
    while len(given) < count:
        message, descriptors = receive(connection)
        if "refused" in message or not message:
            raise PeerEnded(message.get("refused", "the process that gives device memory has ended"))
        for (unit, size), descriptor in zip(message["units"], descriptors, strict=True):
            given.append(GivenUnit(unit, size, descriptor))
    return given


def names(units: Sequence[UnitInfo]) -> list[tuple[int, int]]:
    """Return numbers and sizes."""
    return [(unit.unit, unit.size) for unit in units]


class RemoteSupplier:
    """Asks the store's process for units; see :class:`~sharedkernel.device_memory.segments.Supplier`.

    Parameters
    ----------
    connection
        To a :class:`StoreEnd`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        """Return new private units of these sizes."""
        send(self._connection, {"ask": "private", "sizes": list(sizes)})
        given = receive_units(self._connection, len(sizes))
        send(self._connection, {"ask": "confirm", "units": [unit.unit for unit in given]})
        return given

    def keep_units(self, units: Sequence[int]) -> None:
        """Make units of the lane private."""
        send(self._connection, {"ask": "keep", "units": list(units)})

    def release_units(self, units: Sequence[int]) -> None:
        """Return units of which nothing is left in this process."""
        send(self._connection, {"ask": "take back", "units": list(units)})


class StoreEnd:
    """The store's end of a connection to one session's process: tells it what to do, and serves it meanwhile.

    Parameters
    ----------
    store, lane
        Where units come from.
    name
        Of the session.
    connection
        To its process.
    """

    def __init__(self, store: LaneStore, lane: int, name: str, connection: socket.socket) -> None:
        self.store = store
        self.name = name
        self.connection = connection
        self._lane = lane

    def do(self, what: str, **arguments: Any) -> Any:
        """Have the process do something; return its answer."""
        send(self.connection, {"do": what, **arguments})
        return self.answer()

    def answer(self) -> Any:
        """Serve the session until it is done with what it was told; return its answer.

        Raises
        ------
        PeerEnded
            When its process ends.
        RuntimeError
            When it failed, with its words.
        """
        while True:
            message, _ = receive(self.connection)
            if not message:
                raise PeerEnded(f"the process of session {self.name} has ended")
            match message.get("ask"):
                case "private":
                    self._give(message["sizes"])
                case "confirm":
                    self.store.confirm(self.name, message["units"])
                case "keep":
                    self.store.keep(self.name, message["units"])
                case "take back":
                    self.store.take_back(self.name, message["units"])
                case _ if "failed" in message:
                    raise RuntimeError(f"session {self.name}: {message['failed']}")
                case _:
                    return message["done"]

    def set_lane(self) -> None:
        """Let the session show the lane as it is now."""
        layout, new = self.store.layout(self._lane), self.store.share_lane(self._lane, self.name)
        lane = {"lane": self._lane, "version": layout.version, "units": names(layout.units), "count": len(new)}
        send(self.connection, {"do": "set_lane", **lane})
        self.send_units(new)
        self.answer()

    def _give(self, sizes: Sequence[int]) -> None:
        try:
            units = self.store.give_private(self.name, sizes)
        except Exception as error:
            send(self.connection, {"refused": str(error)})
            raise
        self.send_units(units)

    def send_units(self, units: Sequence[UnitInfo]) -> None:
        """Send units with their descriptors, in batches."""
        for batch, descriptors in self.store.exported(units):
            send(self.connection, {"units": names(batch)}, descriptors)
