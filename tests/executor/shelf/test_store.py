"""Shelves behind their socket, with a real keeper and this very process as the session."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable, ProtocolError, QuotaExceeded, Refused, SharedKernelError
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.shelf.room import Room
from sharedkernel.executor.shelf.session_requests import ShelfRequests
from sharedkernel.executor.shelf.store import LONGEST_NAME, MOST_NAMES, ShelfStore
from sharedkernel.ipc.fd_client import Descriptor, DescriptorClient
from sharedkernel.ipc.fd_server import FdServer
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import DESCRIPTOR_SOCKET, EXECUTOR_SOCKET, KEEPER_SOCKET
from sharedkernel.quota_check import QuotaUse
from tests.executor.harness import until

PAGE = os.sysconf("SC_PAGE_SIZE")


def memory(size: int, *, text: bytes = b"", sealed: bool = True) -> Descriptor:
    """Return memory as a session would shelve it."""
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, text, 0)
    if sealed:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return Descriptor(descriptor)


class Desk:
    """One executor's shelves and socket, a keeper that outlives them, and a session of ada's: this process."""

    def __init__(self, **room: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sk-"))
        #: ada's quota, what her sessions have of it, and what all sessions leave of the device
        self.figures = {"quota": 10 * PAGE, "sessions": 0, "device": 100 * PAGE, **room}
        self.session: SessionHandle | None = None
        #: what the scheduler would be told
        self.changes: list[tuple[str, int]] = []
        self.client = DescriptorClient(str(self.directory / EXECUTOR_SOCKET))
        command = [
            sys.executable,
            "-m",
            "sharedkernel.executor.supervision.keeper",
            str(self.directory / KEEPER_SOCKET),
        ]
        self._keeper = subprocess.Popen(command)

    async def __aenter__(self) -> Self:
        ready = asyncio.get_running_loop().create_future()
        self.session = SessionHandle(
            process="p", started=0, page=Page.create("test"), ready=ready, pid=os.getpid(), session="s", user="ada"
        )

        async def listens() -> bool:
            with contextlib.suppress(OSError):
                self.to_keeper().close()
                return True
            return False

        await until(listens, "the keeper listens")
        self.start()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._to_keeper.send(protocol.Quit())
        self.stop()
        await asyncio.to_thread(self._keeper.wait)
        assert self.session is not None
        self.session.page.close()
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Be a new executor: take over what the keeper has."""
        self._to_keeper = self.to_keeper()
        self.shelves = ShelfStore(
            self._to_keeper.send, self._room, lambda user, size: self.changes.append((user, size))
        )
        self._to_keeper.send(protocol.GetAll())
        while isinstance((answer := self._to_keeper.receive())[0], protocol.Kept):
            self.shelves.adopt(answer[0].data, answer[1])
        self.shelves.start()
        self.channel = FdServer(
            self.directory / DESCRIPTOR_SOCKET,
            lambda pid: self.session if pid == os.getpid() else None,
            ShelfRequests(self.shelves).handlers(),
            self.shelves.forget_reservations,
        )
        self.channel.start()

    def _room(self, user: str, shelf: int, shelves: int) -> Room:
        use = QuotaUse(quota=self.figures["quota"], sessions=self.figures["sessions"], shelf=shelf)
        return Room(use=use, device_left=max(0, self.figures["device"] - shelves))

    def to_keeper(self) -> PacketSocket:
        """Connect to the keeper."""
        return connect(str(self.directory / KEEPER_SOCKET), protocol.FromKeeper)

    def stop(self) -> None:
        """End as an executor."""
        self.channel.close()
        self.shelves.close()
        self._to_keeper.close()

    async def ask(
        self, kind: Callable[..., Any], *descriptors: Descriptor, **fields: Any
    ) -> tuple[Any, list[Descriptor]]:
        """Ask as the session and return the answer."""
        message = kind(request=self.client.number(), **fields)
        return await asyncio.to_thread(self.client.request, message, descriptors)

    async def shelve(self, name: str, size: int, text: bytes = b"") -> None:
        """Shelve *size* bytes in the two steps that it takes."""
        reservation = self.client.number()
        reserve = protocol.ReserveShelf(request=reservation, name=name, bytes=size)
        await asyncio.to_thread(self.client.request, reserve)
        await self.ask(protocol.Shelve, memory(size, text=text), name=name, reservation=reservation)

    async def fetch(self, name: str) -> Descriptor:
        """Return the memory of *name*."""
        _, (descriptor,) = await self.ask(protocol.FetchShelved, name=name)
        return descriptor

    async def names(self) -> list[str]:
        """Return what the shelf lists."""
        return [entry.name for entry in (await self.ask(protocol.ListShelf))[0].entries]

    def raw(self) -> PacketSocket:
        """Connect anew as the session; the greeting is still to come."""
        return connect(str(self.directory / DESCRIPTOR_SOCKET), protocol.FromDescriptorSocket)


def at_a_desk(main: Callable[[Desk], Coroutine[Any, Any, None]], **room: int) -> None:
    """Run *main*; afterwards no descriptor is left open."""

    async def run() -> None:
        async with Desk(**room) as desk:
            await main(desk)
            desk.client._drop()

    gc.collect()  # what other tests left is not looked for
    before = set(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    gc.collect()  # tracebacks of expected errors hold on to descriptors
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_is_shelved_can_be_fetched_listed_and_taken_off() -> None:
    """Each step is told to the scheduler with what the shelf is then charged with."""

    async def main(desk: Desk) -> None:
        await desk.shelve("b", PAGE + 1, b"hello")
        await desk.shelve("a", PAGE)
        listing, _ = await desk.ask(protocol.ListShelf)
        assert [(entry.name, entry.bytes) for entry in listing.entries] == [("a", PAGE), ("b", 2 * PAGE)]
        assert (listing.charged_bytes, listing.left_bytes) == (3 * PAGE, 7 * PAGE)
        assert os.pread((await desk.fetch("b")).fileno(), 5, 0) == b"hello"
        await desk.ask(protocol.Unshelve, name="a")
        assert await desk.names() == ["b"]
        for ask in (desk.fetch("a"), desk.ask(protocol.Unshelve, name="a")):
            with pytest.raises(KeyError, match="there is no 'a' on your shelf"):
                await ask
        assert desk.changes == [
            ("ada", PAGE + 1), ("ada", 2 * PAGE), ("ada", 3 * PAGE), ("ada", 3 * PAGE), ("ada", 2 * PAGE)
        ]  # fmt: skip

    at_a_desk(main)


def test_nobody_reaches_another_users_shelf() -> None:
    """The user is the process's, whatever is asked."""

    async def main(desk: Desk) -> None:
        await desk.shelve("a", PAGE)
        assert desk.session is not None
        desk.session.user = "grace"
        assert await desk.names() == []
        with pytest.raises(KeyError):
            await desk.fetch("a")
        with pytest.raises(KeyError):
            await desk.ask(protocol.Unshelve, name="a")
        await desk.shelve("a", 2 * PAGE)
        desk.session.user = "ada"
        assert desk.shelves.charged("ada") == PAGE
        assert (await desk.ask(protocol.FetchShelved, name="a"))[0].bytes == PAGE

    at_a_desk(main)


def test_beyond_the_quota_nothing_is_changed() -> None:
    """The sentence has the figures, and says what would help; what a name had before stays."""

    async def main(desk: Desk) -> None:
        await desk.shelve("a", 6 * PAGE, b"old")
        with pytest.raises(QuotaExceeded) as raised:
            await desk.shelve("a", 4 * PAGE)
        assert str(raised.value) == (
            "'a' needs 16.0 KiB on the shelf, and 12.0 KiB are left: your quota is 40.0 KiB, your sessions use 4.0 KiB,"
            ' your shelf 24.0 KiB. Nothing was changed: free what you no longer need (`del name`, `del shelf["name"]`) '
            "and shelve it again; `del shelf['a']` frees the 24.0 KiB that it would replace."
        )
        assert os.pread((await desk.fetch("a")).fileno(), 3, 0) == b"old"
        assert desk.shelves.charged("ada") == 6 * PAGE

    at_a_desk(main, sessions=PAGE)


def test_beyond_the_device_nothing_is_changed() -> None:
    """All users' shelves have to fit into what the sessions leave."""

    async def main(desk: Desk) -> None:
        await desk.shelve("a", 3 * PAGE)
        assert desk.session is not None
        desk.session.user = "grace"
        with pytest.raises(
            Refused, match=r"4\.0 KiB are left: sessions and shelves of all users have the rest"
        ) as raised:
            await desk.shelve("b", 2 * PAGE)
        assert raised.value.reason == "memory"
        await desk.shelve("b", PAGE)

    at_a_desk(main, device=4 * PAGE)


def test_a_size_is_measured_and_not_believed() -> None:
    """More than was reserved has to find room, and a size that could change is refused."""

    async def main(desk: Desk) -> None:
        reservation = desk.client.number()
        reserve = protocol.ReserveShelf(request=reservation, name="a", bytes=-(1 << 40))
        await asyncio.to_thread(desk.client.request, reserve)
        with pytest.raises(QuotaExceeded):
            await desk.ask(protocol.Shelve, memory(11 * PAGE), name="a", reservation=reservation)
        reading, writing = map(Descriptor, os.pipe())
        for wrong in ([], [memory(PAGE, sealed=False)], [reading], [memory(PAGE), memory(PAGE)]):
            with pytest.raises(Refused, match="one memory file of sealed size"):
                await desk.ask(protocol.Shelve, *wrong, name="a", reservation=reservation)
        writing.close()
        assert await desk.names() == []
        await desk.ask(protocol.Shelve, memory(10 * PAGE), name="a", reservation=reservation)
        assert desk.shelves.charged("ada") == 10 * PAGE

    at_a_desk(main)


def test_names_are_bounded() -> None:
    """In length, so that a listing fits into a packet, and in number; a listing of the most of the longest comes."""

    async def main(desk: Desk) -> None:
        for name in ("", "ä" * (LONGEST_NAME // 2 + 1)):
            with pytest.raises(Refused, match="1 to 200 bytes long"):
                await desk.shelve(name, PAGE)
        for number in range(MOST_NAMES):
            await desk.shelve(f"{number:0{LONGEST_NAME}}", PAGE)
        with pytest.raises(Refused, match="at most 256 names"):
            await desk.shelve("one more", PAGE)
        await desk.shelve("0" * LONGEST_NAME, PAGE)
        assert len(await desk.names()) == MOST_NAMES

    at_a_desk(main, quota=1000 * PAGE, device=1000 * PAGE)


def test_a_reservation_ends_with_its_connection_or_when_withdrawn() -> None:
    """A session that dies while it writes leaves nothing reserved."""

    async def main(desk: Desk) -> None:
        for end in ("withdraw", "close"):
            dying = desk.raw()
            await asyncio.to_thread(dying.receive)
            dying.send(protocol.ReserveShelf(request=1, name="a", bytes=10 * PAGE))
            await asyncio.to_thread(dying.receive)
            assert desk.shelves.charged("ada") == 10 * PAGE
            if end == "withdraw":
                dying.send(protocol.WithdrawReservation(request=2, reservation=1))
                await asyncio.to_thread(dying.receive)
            dying.close()

            async def nothing() -> bool:
                return desk.shelves.charged("ada") == 0

            await until(nothing, "nothing is charged")
        await desk.shelve("a", 10 * PAGE)

    at_a_desk(main)


def test_what_was_taken_off_is_charged_while_it_is_used() -> None:
    """Replaced or deleted memory counts until the last mapping is gone; so nobody has more than the quota."""

    async def main(desk: Desk) -> None:
        await desk.shelve("a", 4 * PAGE, b"old")
        old = await desk.fetch("a")
        await desk.shelve("a", 5 * PAGE)
        assert desk.shelves.charged("ada") == 9 * PAGE
        newer = await desk.fetch("a")
        await desk.ask(protocol.Unshelve, name="a")
        assert desk.shelves.charged("ada") == 9 * PAGE
        assert os.pread(old.fileno(), 3, 0) == b"old"
        desk.stop()
        desk.start()  # under the next executor, too
        assert desk.shelves.charged("ada") == 9 * PAGE
        assert await desk.names() == []

        for used, left in ((newer, 4 * PAGE), (old, 0)):
            used.close()

            async def freed(left: int = left) -> bool:
                return desk.shelves.charged("ada") == left

            await until(freed, "what nobody uses is freed")
        assert desk.changes[-2:] == [("ada", 4 * PAGE), ("ada", 0)]
        desk.stop()
        desk.start()
        assert desk.shelves.charged("ada") == 0

    at_a_desk(main)


def test_of_two_under_one_name_the_next_executor_takes_the_later() -> None:
    """An executor may end between keeping the one and letting go of the other."""

    async def main(desk: Desk) -> None:
        await desk.shelve("a", PAGE, b"one")
        keeper = desk.to_keeper()
        keeper.send(protocol.GetAll())
        kept, descriptors = await asyncio.to_thread(keeper.receive)
        await desk.shelve("a", PAGE, b"two")
        keeper.send(protocol.Put(key=kept.key, data=kept.data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        keeper.close()
        for _ in range(2):
            desk.stop()
            desk.start()
            assert os.pread((await desk.fetch("a")).fileno(), 3, 0) == b"two"
            assert desk.shelves.charged("ada") == PAGE

    at_a_desk(main)


def test_a_new_executor_knows_no_reservation_and_takes_what_was_written() -> None:
    """A restart while a session writes costs it nothing."""

    async def main(desk: Desk) -> None:
        reservation = desk.client.number()
        reserve = protocol.ReserveShelf(request=reservation, name="a", bytes=4 * PAGE)
        await asyncio.to_thread(desk.client.request, reserve)
        desk.stop()
        asking = asyncio.create_task(desk.ask(protocol.Shelve, memory(4 * PAGE), name="a", reservation=reservation))
        desk.start()
        await asking
        assert await desk.names() == ["a"]

    at_a_desk(main)


def test_a_process_that_is_no_session_is_told_so() -> None:
    """And so is a child of one, which keeps no hold on its parent's connection."""

    async def main(desk: Desk) -> None:
        session, desk.session = desk.session, None
        with pytest.raises(SharedKernelError, match="only a notebook's own process is served here"):
            await desk.names()
        desk.session = session
        assert await desk.names() == []

    at_a_desk(main)


def test_who_breaks_the_protocol_is_told_and_hung_up_on() -> None:
    """Junk with descriptors: one sentence, the descriptors are closed, and others are served."""

    async def main(desk: Desk) -> None:
        await desk.names()
        junk = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        junk.connect(str(desk.directory / DESCRIPTOR_SOCKET))
        peer = PacketSocket(junk, protocol.FromDescriptorSocket)
        await asyncio.to_thread(peer.receive)
        reading, writing = map(Descriptor, os.pipe())
        socket.send_fds(junk, [b"\x00\x00\x00\x04junk"], [writing.fileno()])
        writing.close()
        failed, _ = await asyncio.to_thread(peer.receive)
        assert failed.reason == "protocol"
        assert await asyncio.to_thread(peer.receive) == (None, [])
        assert await asyncio.to_thread(os.read, reading.fileno(), 1) == b""  # the last writing end was closed
        peer.close()
        assert await desk.names() == []

    at_a_desk(main)


def test_who_does_not_take_answers_is_hung_up_on() -> None:
    """The executor never waits for a session."""

    async def main(desk: Desk) -> None:
        deaf = desk.raw()
        await asyncio.to_thread(deaf.receive)

        def flood() -> None:
            while True:
                deaf.send(protocol.ListShelf(request=1))

        with pytest.raises(ConnectionError):
            await asyncio.to_thread(flood)
        deaf.close()
        assert await desk.names() == []

    at_a_desk(main)


def test_without_an_executor_the_client_says_what_to_do(tmp_path: Path) -> None:
    """Nothing is lost, and trying again helps."""
    client = DescriptorClient(str(tmp_path / EXECUTOR_SOCKET), patience=0)
    with pytest.raises(
        ExecutorUnavailable, match="the executor does not answer, it may be restarting; nothing is lost"
    ):
        client.request(protocol.ListShelf(request=1))


def test_another_version_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    """The client does not ask an executor that it might misunderstand."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / DESCRIPTOR_SOCKET))
    listener.listen()

    def answer() -> None:
        accepted, _ = listener.accept()
        PacketSocket(accepted, protocol.ToDescriptorSocket).send(protocol.DescriptorWelcome(version=99))
        accepted.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ProtocolError, match="different versions of sharedkernel; restart the kernel"):
        DescriptorClient(str(tmp_path / EXECUTOR_SOCKET)).request(protocol.ListShelf(request=1))
    thread.join()
    listener.close()
