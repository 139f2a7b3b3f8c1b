"""What the executor finds out about hand-overs, with sessions that follow a script: they have tokens, and no kernel."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.executor.devices.host import HostLimits
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc import baton
from sharedkernel.ipc.baton import CallReceiver
from sharedkernel.ipc.shared_page import Word
from sharedkernel.protocol import Device, Limits, Memory
from sharedkernel.scheduling import SchedulerConfig
from tests.executor.devices.support import GIB, make_process
from tests.executor.harness import until

MIB = 1 << 20
MEMORY = Memory(persistent=MIB, ephemeral=MIB, framework=0)
RELEASED = protocol.GrantReleasedReport(at="boundary", memory=MEMORY, iterations=1)


class Scripted:
    """A session that does what a test says."""

    def __init__(self, controller: SessionController, process: SessionHandle, end: socket.socket) -> None:
        self.controller = controller
        self.process = process
        self._end = end
        self._decoder = protocol.Decoder(protocol.ToSession)
        self.tokens: socket.socket
        self.calls: CallReceiver
        self.line: socket.socket | None = None

    def close(self) -> None:
        """Free what it has."""
        self._end.close()
        if self.process.transport is not None:
            self.process.transport.abort()
        if hasattr(self, "tokens"):
            self.tokens.close()
            self.calls.close()
        if self.line is not None:
            self.line.close()

    def heard(self, *kinds: type) -> list[Any]:
        """Return what it was told since this was asked last, of some kinds."""
        try:
            data = self._end.recv(1 << 16)
        except BlockingIOError:
            return []
        return [message for message in self._decoder.feed(data) if isinstance(message, kinds)]

    async def hears(self, kind: type) -> Any:
        """Return the first of a kind that it is told."""

        async def has_come() -> list[Any]:
            return self.heard(kind)

        return (await until(has_come, f"a {kind.__name__} comes"))[0]

    def says(self, message: protocol.Message) -> None:
        self.controller.handle(self.process, message)

    def wants(self) -> None:
        self.says(protocol.DeviceWantedReport(memory=MEMORY, data_bytes=0))

    def fetches(self, line: int) -> list[int]:
        """Fetch its own part, or the line to another."""
        request = protocol.FetchLine(request=1, line=line) if line else protocol.FetchBaton(request=1)
        return self.controller.handlers()[type(request)](self.process, request, []).descriptors

    def take_part(self) -> None:
        """Fetch what it was told of."""
        for message in self.heard(protocol.Introduced):
            ends = self.fetches(message.line)
            if message.line:
                self.line = baton.adopt(ends[0])
            else:
                self.tokens, self.calls = baton.adopt(ends[0]), CallReceiver(baton.adopt(ends[1]))

    @property
    def state(self) -> str:
        sessions = self.controller.snapshot().sessions
        return next(str(view.state) for view in sessions if view.id == self.process.session)


class Scene:
    """An executor's controller and sessions; the first of them holds the device, and the others want it."""

    def __init__(self, directory: Path) -> None:
        config = SchedulerConfig(capacity=GIB, quantum=0.01, preempt_patience=30.0, names_heirs=True)
        served = HostLimits(Device(name="host", kind="host", capacity_bytes=GIB, reserve_bytes=0))
        self.controller = SessionController(
            served, config, EventLog(directory / "events.jsonl"), WorkloadHistory(directory, "host"), lambda *_: None
        )
        self._sessions: list[Scripted] = []
        #: what the executor limits, stops and looks at in the place of the sessions: never this process
        self._sleepers: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """Decide nothing any more."""
        self.controller.close()
        for session in self._sessions:
            session.close()
        for sleeper in self._sleepers:
            sleeper.kill()
            sleeper.wait()

    async def session(self, name: str, *, can_inherit: bool = True) -> Scripted:
        """Return a session in a cell that wants the device."""
        mine, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._sleepers.append(subprocess.Popen(["sleep", "600"]))  # noqa: ASYNC220 - returns at once
        process = make_process(name, pid=self._sleepers[-1].pid, limits=Limits(user=name))
        process.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, mine)
        self.controller.greeted(process, can_inherit=can_inherit)
        self.controller.add(process)
        session = Scripted(self.controller, process, theirs)
        self._sessions.append(session)
        session.says(protocol.CellOpenedReport())
        session.wants()
        return session

    async def switch(self, holder: Scripted, other: Scripted) -> None:
        """Let the device pass from *holder* the plain way, which both come back from knowing each other."""
        for _ in range(2):
            holder.take_part()
            other.take_part()
            await until(partial(is_revoked, holder), "the holder's time is over")
            holder.says(RELEASED)
            await other.hears(protocol.Granted)
            holder.wants()
            holder, other = other, holder
        holder.take_part()
        other.take_part()
        await until(lambda: is_revoked(holder), "the holder's time is over, and its heir is named")


async def is_revoked(session: Scripted) -> bool:
    return bool(session.process.page.words[Word.PREEMPT])


def play(directory: Path, act: Callable[[Scene, Scripted, Scripted], Awaitable[None]]) -> None:
    """Have a holder and another session act, once their hand-over is armed."""

    async def main() -> None:
        scene = Scene(directory)
        try:
            ada, bob = await scene.session("ada"), await scene.session("bob")
            await scene.switch(ada, bob)
            ada.heard()
            bob.heard()
            await act(scene, ada, bob)
        finally:
            scene.close()

    asyncio.run(main())


def hand_on(giver: Scripted, *, calls: bool = True) -> None:
    """Do what a holder does at its boundary, but for the report."""
    token = baton.take(giver.tokens)
    assert token is not None, "nothing is armed"
    assert giver.line is not None
    if calls:
        assert baton.call(giver.line, token.number)


def inherit(heir: Scripted) -> bool:
    """Do what a session does that is called; return whether it holds the device."""
    number, token = heir.calls.next(), baton.peek(heir.tokens)
    return token is not None and token.number == number and baton.take(heir.tokens) == token


def test_the_heir_begins_before_the_executor_knows(tmp_path: Path) -> None:
    """The report of the giver is all that comes; the heir is not told what it knows."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        assert inherit(bob)
        assert (ada.state, bob.state) == ("preempting", "queued")
        ada.says(RELEASED)
        assert (ada.state, bob.state) == ("ready", "running")
        assert bob.heard(protocol.Granted) == []

    play(tmp_path, act)


def test_a_heir_that_was_not_called_is_told(tmp_path: Path) -> None:
    """The giver ended, or was stopped, in between; its call comes too late then."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada, calls=False)
        scene.controller.remove(ada.process)
        assert bob.state == "running"
        await bob.hears(protocol.Granted)
        assert not inherit(bob)

    play(tmp_path, act)


def test_a_giver_that_ends_before_leaves_the_device_to_the_executor(tmp_path: Path) -> None:
    """Nothing happened."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        scene.controller.remove(ada.process)
        await bob.hears(protocol.Granted)
        assert baton.take(bob.tokens) is None

    play(tmp_path, act)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_giver_that_ends_after_it_called_leaves_the_device_to_its_heir(tmp_path: Path, has_begun: bool) -> None:
    """Whether that one has begun or not; it is told only if it has not."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        if has_begun:
            assert inherit(bob)
        scene.controller.remove(ada.process)
        assert bob.state == "running"
        if has_begun:
            assert bob.heard(protocol.Granted) == []
        else:
            await bob.hears(protocol.Granted)
            assert not inherit(bob)

    play(tmp_path, act)


def test_a_heir_that_ends_leaves_the_device_to_the_next(tmp_path: Path) -> None:
    """The giver wants it again, and is granted it."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        assert inherit(bob)
        ada.says(RELEASED)
        ada.wants()
        scene.controller.remove(bob.process)
        assert ada.state == "running"
        await ada.hears(protocol.Granted)

    play(tmp_path, act)


def test_a_heir_that_ends_before_the_report_leaves_the_device_free(tmp_path: Path) -> None:
    """The report of the giver, which comes after that, releases nothing a second time."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        assert inherit(bob)
        scene.controller.remove(bob.process)
        assert ada.state == "ready"
        ada.says(RELEASED)
        ada.wants()
        await ada.hears(protocol.Granted)

    play(tmp_path, act)


def test_an_interrupt_of_the_heir_comes_before_or_after(tmp_path: Path) -> None:
    """Before, its token is gone when it would take it; after, it is granted the device, and then hears of its wish."""

    async def before(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        bob.says(protocol.DeviceWantWithdrawnReport())
        assert (ada.state, bob.state) == ("preempting", "ready")
        assert baton.take(ada.tokens) is baton.take(bob.tokens) is None

    async def after(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        bob.says(protocol.DeviceWantWithdrawnReport())
        assert (ada.state, bob.state) == ("ready", "running")

        async def both() -> list[Any]:
            return bob.heard(protocol.Granted, protocol.WithdrawalSeen)

        assert [type(each) for each in await until(both, "both come")] == [protocol.Granted, protocol.WithdrawalSeen]
        bob.says(RELEASED)
        ada.says(RELEASED)
        assert (ada.state, bob.state) == ("ready", "ready")

    play(tmp_path, before)
    play(tmp_path, after)


def test_another_event_disarms(tmp_path: Path) -> None:
    """The executor decides then, as for any release."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        cleo = await scene.session("cleo")
        assert baton.take(ada.tokens) is baton.take(bob.tokens) is None
        ada.says(RELEASED)
        assert "running" in (bob.state, cleo.state)

    play(tmp_path, act)


def test_a_session_that_greets_anew_has_no_token(tmp_path: Path) -> None:
    """It says where it stands, having forgotten all tokens; what it did before that holds."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada)
        assert inherit(bob)
        hello = protocol.SessionHello(
            version=protocol.PROTOCOL_VERSION, process="ada", pid=0, connection={}, memory=MEMORY, data_bytes=0,
            cell_open=True, wanting=True, can_inherit=True,
        )  # fmt: skip
        scene.controller.greeted(ada.process, can_inherit=True)
        assert bob.state == "running"
        scene.controller.take_over(ada.process, hello)
        assert (ada.state, bob.state) == ("queued", "running")

        async def is_closed() -> list[Any]:
            return bob.heard(protocol.Granted, protocol.LineClosed)

        (closed,) = await until(is_closed, "the line to it is closed")
        assert isinstance(closed, protocol.LineClosed)
        with pytest.raises(Refused, match="no such session"):
            bob.fetches(closed.line)

    play(tmp_path, act)


def test_a_stranger_wakes_nobody(tmp_path: Path) -> None:
    """Whoever has called a session before has its line, and not the number of this hand-over."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        assert ada.line is not None
        for number in (0, 1, 12345):
            assert baton.call(ada.line, number)
            assert not inherit(bob)
        hand_on(ada)
        assert inherit(bob)

    play(tmp_path, act)


def test_who_begins_before_the_device_is_released_yields_and_takes_no_part_again(tmp_path: Path) -> None:
    """One of the two lies: the giver has called and kept its token, or its heir has taken its own uncalled."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        assert baton.take(bob.tokens) is not None
        ada.says(protocol.GrantMeasuredReport(iterations=1))
        assert (ada.state, bob.state) == ("preempting", "queued")
        assert await is_revoked(bob)
        assert baton.take(ada.tokens) is None
        bob.says(RELEASED)
        assert (ada.state, bob.state) == ("preempting", "queued")
        with pytest.raises(Refused):
            ada.fetches(0)
        ada.says(RELEASED)
        assert bob.state == "running"

    play(tmp_path, act)


def test_tokens_of_a_sessions_own_making_count_for_nothing(tmp_path: Path) -> None:
    """A giver that fills its socket and keeps the device has released it all the same: its own token is gone."""

    async def act(scene: Scene, ada: Scripted, bob: Scripted) -> None:
        hand_on(ada, calls=False)
        baton.put(ada.tokens, baton.Token(1))  # goes to an end that nobody reads
        ada.tokens.shutdown(socket.SHUT_RDWR)
        ada.says(protocol.GrantMeasuredReport(iterations=1))
        assert (ada.state, bob.state) == ("ready", "running")

    play(tmp_path, act)


def test_a_session_that_cannot_inherit_takes_the_plain_way(tmp_path: Path) -> None:
    """As one of an older build."""

    async def main() -> None:
        scene = Scene(tmp_path)
        try:
            ada = await scene.session("ada")
            bob = await scene.session("bob", can_inherit=False)
            await scene.switch(ada, bob)
            assert not hasattr(ada, "tokens")
            ada.says(RELEASED)
            await bob.hears(protocol.Granted)
        finally:
            scene.close()

    asyncio.run(main())
