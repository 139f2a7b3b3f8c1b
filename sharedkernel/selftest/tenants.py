"""Several session processes in one lane, driven step by step by the process that has the store.

The processes are forked before the store is opened, since a driver that is in use does not survive a fork. Each has
torch's allocator over memory of ours, as a session has. What it keeps is filled with bytes that follow from a number,
and compared by checksum. Units of device memory pass between them without an executor: JSON over unix sockets, with
descriptors beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import torch

from sharedkernel.device_memory.cuda_driver import CudaDriver
from sharedkernel.device_memory.driver import MIB
from sharedkernel.device_memory.layout import GivenUnit, LaneLayout, UnitInfo
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.ipc.seqpacket import receive_packet
from sharedkernel.selftest.lane_process import LANE, empty, make_lane_memory
from sharedkernel.selftest.training import Training
from sharedkernel.system.processes import end_process, fork_child

LANE_BYTES = 64 * MIB
_MAX_BYTES = 1 << 20


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
        Anything that has a form in JSON.
    descriptors
        Copies of them travel with it.
    """
    socket.send_fds(connection, [msgspec.json.encode(message)], list(descriptors))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message; an empty one when the peer is gone."""
    try:
        data, descriptors = receive_packet(connection, most=_MAX_BYTES)
    except ConnectionError:
        return {}, []
    return (msgspec.json.decode(data) if data else {}), descriptors


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
    RuntimeError
        When the other end refuses, or has ended.
    """
    given: list[GivenUnit] = []
    while len(given) < count:
        message, descriptors = receive(connection)
        if "refused" in message or not message:
            raise RuntimeError(message.get("refused", "the process that gives device memory has ended"))
        pairs = zip(message["units"], descriptors, strict=True)
        given += [GivenUnit(**unit, descriptor=descriptor) for unit, descriptor in pairs]
    return given


class RemoteSupplier:
    """Asks the store's process for units; see :class:`~sharedkernel.device_memory.segments.Supplier`.

    Parameters
    ----------
    connection
        To a :class:`TenantConnection`.
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


def fill(tensor: torch.Tensor, seed: int) -> int:
    """Fill a tensor with random bytes; return their checksum.

    Parameters
    ----------
    tensor
        Of bytes, on the GPU.
    seed
        Of the random generator.
    """
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=generator)
    tensor.copy_(data)
    return zlib.crc32(data.numpy().tobytes())


def checksum(tensor: torch.Tensor) -> int:
    """Return the checksum of a tensor of bytes on the GPU."""
    return zlib.crc32(tensor.cpu().numpy().tobytes())


def expect(holds: bool, otherwise: str) -> None:
    """Raise if something does not hold; an assertion may be compiled away.

    Raises
    ------
    RuntimeError
        With *otherwise*.
    """
    if not holds:
        raise RuntimeError(otherwise)


class Tenant:
    """One session's process: does what it is told.

    Parameters
    ----------
    connection
        To the store's process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._supplier = RemoteSupplier(connection)
        self._arena, self._memory = make_lane_memory(self._supplier, check_lanes=True)
        #: tensors by name, with the checksums that they are to have
        self._kept: dict[str, tuple[torch.Tensor, int]] = {}
        self._training: Training | None = None

    def run(self) -> None:
        """Do what comes, until the other end is closed."""
        while True:
            message, _ = receive(self._connection)
            if not message:
                return
            try:
                answer = getattr(self, message.pop("do"))(**message)
            except Exception as error:
                traceback.print_exc()
                send(self._connection, {"failed": str(error) or type(error).__name__})
            else:
                send(self._connection, {"done": answer})

    def set_lane(self, layout: dict[str, Any], count: int) -> None:
        """Show a lane."""
        self._memory.set_lane(msgspec.convert(layout, LaneLayout), receive_units(self._connection, count))

    def begin_turn(self, must_scrub: bool) -> None:
        """Begin a turn and an iteration in it."""
        self._memory.begin_turn(must_scrub=must_scrub)
        self._memory.begin_iteration()

    def hand_over(self, at: Literal["boundary", "cell", "yield"]) -> None:
        """End the turn."""
        self._memory.hand_over(at)
        self._arena.validate()

    def train(self, seed: int) -> float:
        """Train for one pass; return its loss."""
        if self._training is None:
            self._training = Training("cuda", seed)
        return self._training.step()

    def keep(self, name: str, size: int, seed: int) -> None:
        """Make a tensor that stays.

        Parameters
        ----------
        name
            Names it for :meth:`forget`.
        size
            Bytes.
        seed
            Of its random content.
        """
        tensor = empty(size)
        self._kept[name] = (tensor, fill(tensor, seed))

    def forget(self, name: str) -> None:
        """Free one."""
        del self._kept[name]

    def check(self) -> None:
        """Compare all that is kept."""
        for name, (tensor, expected) in self._kept.items():
            expect(checksum(tensor) == expected, f"{name} was overwritten")

    def occupy(self, size: int, mark: int, foreign: Sequence[int] = ()) -> None:
        """Write a byte all over memory that is freed again.

        Parameters
        ----------
        size
            Bytes of one tensor; there are eight of 1 MiB besides.
        mark
            The byte.
        foreign
            Marks of other users, which must not be there before.
        """
        tensors = [empty(MIB) for _ in range(8)] + [empty(size)]
        for tensor in tensors:
            for other in foreign:
                # by chance a byte has any value, but not a quarter of all bytes
                seen = int((tensor == other).sum())
                expect(seen < tensor.numel() // 4, "another user's memory can be read")
            tensor.fill_(mark)
        torch.cuda.synchronize()

    def away(self) -> list[int]:
        """Move everything off the device; return the addresses of what is kept."""
        pending = self._memory.prepare_offload()
        pending.write()
        pending.commit()
        return [tensor.data_ptr() for tensor, _ in self._kept.values()]

    def back(self) -> list[int]:
        """Bring everything back; return the addresses of what is kept."""
        self._memory.restore(self._supplier.private_units(self._memory.sizes_away(), mid_iteration=False))
        return [tensor.data_ptr() for tensor, _ in self._kept.values()]


class TenantConnection:
    """The store's end of a connection to one tenant: tells it what to do, and serves it meanwhile.

    Parameters
    ----------
    store
        Where units come from.
    name, user
        Of the session, and whose it is.
    connection, pid
        To its process, and of that.
    """

    def __init__(self, store: LaneStore, name: str, user: str, connection: socket.socket, pid: int) -> None:
        self.store = store
        self.name = name
        self.connection = connection
        self._user = user
        self._pid = pid

    def do(self, what: str, **arguments: Any) -> Any:
        """Have the process do something; return its answer."""
        send(self.connection, {"do": what, **arguments})
        return self.answer()

    def answer(self) -> Any:
        """Serve the session until it is done with what it was told; return its answer.

        Raises
        ------
        RuntimeError
            When its process ends, or it failed, with its words.
        """
        while True:
            message, _ = receive(self.connection)
            if not message:
                raise RuntimeError(f"the process of session {self.name} has ended")
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

    def _set_lane(self) -> None:
        """Let the session show the lane as it is now."""
        layout, new = self.store.layout(LANE), self.store.share_lane(LANE, self.name)
        send(self.connection, {"do": "set_lane", "layout": layout, "count": len(new)})
        self._send_units(new)
        self.answer()

    def _give(self, sizes: Sequence[int]) -> None:
        try:
            units = self.store.give_private(self.name, sizes)
        except Exception as error:
            send(self.connection, {"refused": str(error)})
            raise
        self._send_units(units)

    def _send_units(self, units: Sequence[UnitInfo]) -> None:
        """Send units with their descriptors, in batches."""
        for batch, descriptors in self.store.exported(units):
            send(self.connection, {"units": batch}, descriptors)

    def begin_turn(self) -> None:
        """Give it the lane."""
        self._set_lane()
        self.do("begin_turn", must_scrub=self.store.begin_turn(LANE, self.name, self._user))

    @contextlib.contextmanager
    def turn(self, at: Literal["boundary", "cell", "yield"] = "boundary") -> Iterator[None]:
        """Give it the lane for a while, and take it back."""
        self.begin_turn()
        yield
        self.do("hand_over", at=at)
        self.store.end_turn(LANE, self.name)
        self.store.validate()

    def warm_up(self) -> None:
        """Let the first iterations of a job pass."""
        for _ in range(3):
            with self.turn():
                self.do("occupy", size=16 * MIB, mark=1)

    def kill(self) -> None:
        """End its process without a warning; its memory is free when this returns."""
        os.kill(self._pid, signal.SIGKILL)
        self.close()
        self.store.session_gone(self.name)

    def close(self) -> None:
        """Let its process end, unless it has ended."""
        self.connection.close()
        if self._pid:
            os.waitpid(self._pid, 0)
            self._pid = 0


@contextlib.contextmanager
def tenants(*users: str, is_warm: bool = True) -> Iterator[list[TenantConnection]]:
    """Yield session processes of these users, past a job's first iterations if *is_warm*, and a lane beside them."""
    processes: list[tuple[int, socket.socket]] = []
    for _ in users:
        processes.append(_fork([connection for _, connection in processes]))
    store = LaneStore(CudaDriver(0))
    store.create_lane(LANE, LANE_BYTES)
    peers = [
        TenantConnection(store, f"{number} of {user}", user, connection, pid)
        for number, (user, (pid, connection)) in enumerate(zip(users, processes, strict=True))
    ]
    for peer in peers:
        expect(peer.answer() is None, "")  # it is there, with a context
    for peer in peers if is_warm else ():
        peer.warm_up()
    yield peers
    for peer in peers:
        peer.close()
    store.validate()


def _fork(others: Sequence[socket.socket]) -> tuple[int, socket.socket]:
    """Fork a tenant; it closes what this process has of *others*, which would otherwise never see their end."""
    ours, theirs = socket_pair()

    def be_tenant() -> None:
        for connection in (ours, *others):
            connection.close()
        try:
            tenant = Tenant(theirs)
            send(theirs, {"done": None})
            tenant.run()
        except BaseException as error:
            traceback.print_exc()  # before the answer: who gets it may end, and this process with it
            with contextlib.suppress(OSError):
                send(theirs, {"failed": str(error) or type(error).__name__})
            end_process(1)

    pid = fork_child(be_tenant)
    theirs.close()
    return pid, ours
