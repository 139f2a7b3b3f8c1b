"""Shelves behind their socket, with this very process as the session."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from sharedkernel import protocol
from sharedkernel.errors import (
    ConfigError,
    ExecutorUnavailable,
    ProtocolError,
    QuotaExceeded,
    Refused,
)
from sharedkernel.executor.processes.fd_server import FdServer
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.shelf.store import LONGEST_NAME, MOST_NAMES, Room, ShelfStore
from sharedkernel.ipc.fd_client import Descriptor, DescriptorClient
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import DESCRIPTOR_SOCKET, EXECUTOR_SOCKET
from sharedkernel.quota_check import QuotaUse
from tests.executor.harness import until
from tests.small_disk import fill

PAGE = os.sysconf("SC_PAGE_SIZE")


class Desk:
    """One executor's shelves and socket, and a session of ada's: this process."""

    def __init__(self, **room: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sk-"))
        #: ada's quota, what her sessions have of it, and what all sessions leave of the device
        self.figures = {"quota": 10 * PAGE, "sessions": 0, "device": 100 * PAGE, **room}
        self.session: SessionHandle
        #: what the scheduler would be told
        self.changes: list[tuple[str, int]] = []
        self.client = DescriptorClient(str(self.directory / EXECUTOR_SOCKET))

    async def __aenter__(self) -> Self:
        ready = asyncio.get_running_loop().create_future()
        self.session = SessionHandle(
            process="p", started=0, page=Page.create("test"), ready=ready, pid=os.getpid(), session="s", user="ada"
        )
        self.start()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self.session.page.close()
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Be a new executor: take over what the last one left."""
        self.shelves = ShelfStore(
            self.directory / "shelf", self._room, lambda user, size: self.changes.append((user, size))
        )
        self.shelves.start()
        self.channel = FdServer(
            self.directory / DESCRIPTOR_SOCKET,
            lambda pid: self.session if pid == os.getpid() else None,
            self.shelves.handlers(),
        )
        self.channel.start()

    def _room(self, user: str, shelf: int, shelves: int) -> Room:
        use = QuotaUse(quota=self.figures["quota"], sessions=self.figures["sessions"], shelf=shelf)
        return Room(use=use, device_left=max(0, self.figures["device"] - shelves))

    def stop(self) -> None:
        """End as an executor."""
        self.channel.close()

    def restart(self) -> None:
        """Be the next executor."""
        self.stop()
        self.start()

    async def ask(self, kind: Callable[..., Any], **fields: Any) -> tuple[Any, list[Descriptor]]:
        """Ask as the session and return the answer."""
        return await asyncio.to_thread(self.client.request, kind(**fields))

    async def reserve(self, name: str, size: int) -> tuple[int, Descriptor]:
        """Return the number of a file to write, and its descriptor."""
        answer, (descriptor,) = await self.ask(protocol.ReserveShelf, name=name, bytes=size)
        return answer.number, descriptor

    async def shelve(self, name: str, size: int, text: bytes = b"") -> None:
        """Shelve *size* bytes in the two steps that it takes."""
        number, descriptor = await self.reserve(name, size)
        os.pwrite(descriptor.fileno(), text, 0)
        await self.ask(protocol.Shelve, number=number)
        descriptor.close()

    async def charged(self, size: int, what: str) -> None:
        """Return once ada is charged with *size* bytes, as the executor looks again and again."""

        async def is_charged() -> bool:
            self.shelves.look()
            return self.shelves.charged("ada") == size

        await until(is_charged, what)

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


@asynccontextmanager
async def at_a_desk(**room: int) -> AsyncIterator[Desk]:
    """Yield a desk; afterwards no descriptor is left open."""
    gc.collect()  # what other tests left is not looked for
    before = set(os.listdir("/proc/self/fd"))
    async with Desk(**room) as desk:
        yield desk
        desk.client._drop()
    await asyncio.sleep(0)  # transports close their sockets in the loop's next turn
    gc.collect()  # tracebacks of expected errors hold on to descriptors
    assert set(os.listdir("/proc/self/fd")) == before


async def test_what_is_shelved_can_be_fetched_listed_and_taken_off() -> None:
    """Each step is told to the scheduler with what the shelf is then charged with."""
    async with at_a_desk() as desk:
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
        assert desk.changes == [("ada", 2 * PAGE), ("ada", 3 * PAGE), ("ada", 2 * PAGE)]


async def test_beyond_the_quota_nothing_is_changed() -> None:
    """The sentence has the figures, and says what would help; what a name had before stays."""
    async with at_a_desk(sessions=PAGE) as desk:
        await desk.shelve("a", 6 * PAGE, b"old")
        with pytest.raises(QuotaExceeded) as raised:
            await desk.shelve("a", 4 * PAGE)
        said = str(raised.value)
        assert re.findall(r"[\d.]+ KiB", said) == [f"{kib}.0 KiB" for kib in (16, 12, 40, 4, 24, 24)], said
        assert "`del shelf['a']` frees" in said
        assert os.pread((await desk.fetch("a")).fileno(), 3, 0) == b"old"
        assert desk.shelves.charged("ada") == 6 * PAGE


async def test_beyond_the_device_nothing_is_changed() -> None:
    """All users' shelves have to fit into what the sessions leave."""
    async with at_a_desk(device=4 * PAGE) as desk:
        await desk.shelve("a", 3 * PAGE)
        desk.session.user = "grace"
        with pytest.raises(
            Refused, match=r"4\.0 KiB are left: sessions and shelves of all users have the rest"
        ) as raised:
            await desk.shelve("b", 2 * PAGE)
        assert raised.value.reason == "memory"
        await desk.shelve("b", PAGE)


async def test_what_lies_beyond_a_reservation_is_cut_off() -> None:
    """It is charged to nobody, on the shelf or off it, whatever a session makes of its file; nor is less charged."""
    async with at_a_desk() as desk:
        number, descriptor = await desk.reserve("a", 2 * PAGE)
        with pytest.raises(QuotaExceeded):
            await desk.reserve("b", 9 * PAGE)
        os.ftruncate(descriptor.fileno(), PAGE)
        await desk.ask(protocol.Shelve, number=number)
        assert desk.shelves.charged("ada") == 2 * PAGE
        os.pwrite(descriptor.fileno(), bytes(20 * PAGE), 0)
        os.ftruncate(descriptor.fileno(), 1 << 40)
        assert (await desk.ask(protocol.ListShelf))[0].charged_bytes == 2 * PAGE
        assert os.fstat(descriptor.fileno()).st_size == 2 * PAGE
        await desk.ask(protocol.Unshelve, name="a")
        assert desk.shelves.charged("ada") == 2 * PAGE
        descriptor.close()
        await desk.charged(0, "nobody uses it")


async def test_what_a_reservation_needs_is_there_before_anything_is_written(small_disk: Path) -> None:
    """On a full disk the sentence says so; nothing is charged, and nothing is left."""
    async with at_a_desk() as desk:
        (desk.directory / "shelf").rmdir()
        (desk.directory / "shelf").symlink_to(small_disk)
        number, descriptor = await desk.reserve("a", 4 * PAGE)
        fill(small_disk)
        os.pwrite(descriptor.fileno(), bytes(4 * PAGE), 0)
        await desk.ask(protocol.Shelve, number=number)
        descriptor.close()
        with pytest.raises(Refused, match=r"no room on the disk for 'b' \(No space left on device\)"):
            await desk.reserve("b", PAGE)
        assert desk.shelves.charged("ada") == 4 * PAGE
        (left,) = (desk.directory / "shelf" / "ada").iterdir()
        assert (left.name[:2], left.suffix) == ("a.", ".safetensors")


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """As one in /var/tmp, which anybody may have made; none is used, and nothing is made in it."""
    open_to_all = tmp_path / "made"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    store = ShelfStore(open_to_all / "shelf", room=lambda *_: pytest.fail("asked for"), on_change=lambda *_: None)
    with pytest.raises(ConfigError, match="--shelf-dir"):
        store.start()
    assert list(open_to_all.iterdir()) == []


async def test_names_and_users_lead_nowhere_else() -> None:
    """Whatever is in them, what they name comes back, under the next executor too; files are closed to others."""
    async with at_a_desk() as desk:
        desk.session.user = "../ada/."
        names = ["..", "/etc/passwd", "a/b", "a%2Fb", ".hidden", "new\nline", "ä.7.off", "\0"]
        for name in names:
            await desk.shelve(name, PAGE, name.encode())
        desk.restart()
        assert await desk.names() == sorted(names)
        for name in names:
            assert os.pread((await desk.fetch(name)).fileno(), len(name.encode()), 0) == name.encode()
        (folder,) = (desk.directory / "shelf").iterdir()
        assert len(list(folder.iterdir())) == len(names)
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.heavy
async def test_names_are_bounded() -> None:
    """In length, so that a listing fits into a packet, and in number; a listing of the most of the longest comes."""
    async with at_a_desk(quota=1000 * PAGE, device=1000 * PAGE) as desk:
        for name in ("", "ä" * (LONGEST_NAME // 2 + 1), "/ä" * 50):
            with pytest.raises(Refused, match="1 to 200 bytes long"):
                await desk.shelve(name, PAGE)
        for number in range(MOST_NAMES):
            await desk.shelve(f"{number:0{LONGEST_NAME}}", PAGE)
        with pytest.raises(Refused, match="at most 256 names"):
            await desk.shelve("one more", PAGE)
        await desk.shelve("0" * LONGEST_NAME, PAGE)
        assert len(await desk.names()) == MOST_NAMES


async def test_a_reservation_lasts_as_long_as_its_session_has_the_file() -> None:
    """A session that dies while it writes, or is interrupted, leaves nothing reserved, and its next try finds room."""
    async with at_a_desk() as desk:
        _, descriptor = await desk.reserve("a", 10 * PAGE)
        desk.restart()
        assert desk.shelves.charged("ada") == 10 * PAGE
        descriptor.close()
        await desk.shelve("a", 10 * PAGE)
        dying = desk.raw()
        await asyncio.to_thread(dying.receive)
        await desk.ask(protocol.Unshelve, name="a")
        dying.close()
        await desk.charged(0, "nothing is charged")


async def test_what_was_taken_off_is_charged_while_it_is_used() -> None:
    """Replaced or deleted memory counts until the last mapping is gone; so nobody has more than the quota."""
    async with at_a_desk() as desk:
        await desk.shelve("a", 4 * PAGE, b"old")
        old = await desk.fetch("a")
        await desk.shelve("a", 5 * PAGE)
        assert desk.shelves.charged("ada") == 9 * PAGE
        newer = await desk.fetch("a")
        await desk.ask(protocol.Unshelve, name="a")
        assert desk.shelves.charged("ada") == 9 * PAGE
        assert os.pread(old.fileno(), 3, 0) == b"old"
        desk.restart()  # under the next executor, too
        assert desk.shelves.charged("ada") == 9 * PAGE
        assert await desk.names() == []

        for used, left in ((newer, 4 * PAGE), (old, 0)):
            used.close()
            await desk.charged(left, "what nobody uses is freed")
        assert desk.changes[-2:] == [("ada", 4 * PAGE), ("ada", 0)]
        desk.restart()
        assert desk.shelves.charged("ada") == 0


async def test_of_two_under_one_name_the_next_executor_takes_the_later() -> None:
    """An executor may end between naming the one and taking the other off."""
    async with at_a_desk() as desk:
        await desk.shelve("a", PAGE, b"one")
        (one,) = (desk.directory / "shelf" / "ada").iterdir()
        os.link(one, desk.directory / "one")
        await desk.shelve("a", PAGE, b"two")
        os.link(desk.directory / "one", one)
        for _ in range(2):
            desk.restart()
            assert os.pread((await desk.fetch("a")).fileno(), 3, 0) == b"two"
            assert desk.shelves.charged("ada") == PAGE


async def test_of_two_that_are_written_at_once_the_later_stays() -> None:
    """Whichever is written first; the other is freed once its session lets go of it."""
    async with at_a_desk() as desk:
        for ends_first in (0, 1):
            both = [await desk.reserve("a", PAGE) for _ in range(2)]
            for each in (both[ends_first], both[1 - ends_first]):
                await desk.ask(protocol.Shelve, number=each[0])
            for _, descriptor in both:
                descriptor.close()
            await desk.charged(PAGE, "one is left")
            desk.restart()
            assert desk.shelves.find("ada", "a").number == both[1][0]


async def test_a_restart_while_a_session_writes_costs_it_nothing() -> None:
    """The next executor knows the file; to be asked twice changes nothing."""
    async with at_a_desk() as desk:
        number, descriptor = await desk.reserve("a", 4 * PAGE)
        desk.stop()
        asking = asyncio.create_task(desk.ask(protocol.Shelve, number=number))
        desk.start()
        await asking
        descriptor.close()
        await desk.ask(protocol.Shelve, number=number)
        assert await desk.names() == ["a"]
        await desk.ask(protocol.Unshelve, name="a")
        with pytest.raises(KeyError, match="is gone; shelve it again"):
            await desk.ask(protocol.Shelve, number=number)


async def test_who_breaks_the_protocol_is_told_and_hung_up_on() -> None:
    """Junk with descriptors: one sentence, the descriptors are closed, and others are served."""
    async with at_a_desk() as desk:
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
        reading.close()
        peer.close()
        assert await desk.names() == []


async def test_who_does_not_take_answers_is_hung_up_on() -> None:
    """The executor never waits for a session."""
    async with at_a_desk() as desk:
        deaf = desk.raw()
        await asyncio.to_thread(deaf.receive)

        def flood() -> None:
            while True:
                deaf.send(protocol.ListShelf(request=1))

        with pytest.raises(ConnectionError):
            await asyncio.to_thread(flood)
        deaf.close()
        assert await desk.names() == []


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
