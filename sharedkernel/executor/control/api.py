"""The requests of gateways and commands to an executor, and the news that gateways get unasked.

Each request is answered, by what it asked for or by why that was not done. Who may ask at all, `router.py` sees to.
"""

from __future__ import annotations

import logging
import signal
from typing import Any

from sharedkernel import protocol
from sharedkernel.errors import Refused, SessionNotFound
from sharedkernel.executor.control.status_builder import StatusBuilder
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import ControlConnection, failed
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.socket_owners import SocketOwners
from sharedkernel.executor.sessions.detached import DetachTimers
from sharedkernel.executor.sessions.starting import SessionLauncher, check_reclaim
from sharedkernel.executor.sessions.user_servers import UserServers
from sharedkernel.executor.shelf.store import ShelfStore
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.ipc.shared_page import Word
from sharedkernel.status.document import pack_part
from sharedkernel.status.timeline import TimelineWindow

log = logging.getLogger(__name__)


class ControlApi:
    """Answers requests; knows the gateways that are connected.

    Parameters
    ----------
    controller, supervisor, launcher, detached, isolation, shelves, status, user_servers
        What requests are about.
    """

    def __init__(
        self,
        controller: SessionController,
        supervisor: Supervisor,
        launcher: SessionLauncher,
        detached: DetachTimers,
        isolation: Isolation,
        shelves: ShelfStore,
        status: StatusBuilder,
        user_servers: UserServers,
    ) -> None:
        self._controller = controller
        self._supervisor = supervisor
        self._launcher = launcher
        self._detached = detached
        self._shelves = shelves
        self._status = status
        self._user_servers = user_servers
        self._sockets = SocketOwners(controller.sessions, isolation)
        #: those that are connected: they are notified of what happens
        self.gateways: set[ControlConnection] = set()

    # --- unasked ------------------------------------------------------------------------------------------------------

    def notify(self, message: protocol.Message) -> None:
        """Send *message* to all gateways."""
        for gateway in self.gateways:
            gateway.send(message)

    def want_earlier(self, process: SessionHandle, question: int) -> None:
        """Pass on that the user of *process* wants the earlier session of the same notebook in its place."""
        assert process.session is not None
        if not self.gateways:
            absent = "The gateway, which knows your earlier sessions, is not there; try again later."
            process.warn(absent, question=question)
        self.notify(protocol.EarlierWanted(session=process.session, question=question))

    # --- asked --------------------------------------------------------------------------------------------------------

    async def answer(self, peer: ControlConnection, message: Any) -> None:
        """Carry out what *peer* asks for, and say so, or why not."""
        try:
            peer.send(await self._carry_out(peer, message))  # in here, since an answer may be too long to send
        except Exception as error:
            peer.send(failed(message, error, log))

    async def _carry_out(self, peer: ControlConnection, message: Any) -> protocol.Message:
        match message:
            case protocol.StartSession():
                process = await self._launcher.start(message, lambda: not peer.transport.is_closing())
                return protocol.SessionReady(request=message.request, record=process.record())
            case protocol.EndSession():
                await self._supervisor.end(self._session(message.session))
            case protocol.LingerSession(seconds=seconds, restarted=restarted):
                await self._detach(self._session(message.session), seconds, restarted=restarted)
            case protocol.ReclaimSession():
                process = self._reclaim(message)
                self._status.forget()
                return protocol.SessionReady(request=message.request, record=process.record())
            case protocol.NotifySession(text=text, question=question, holds_cells=holds):
                self._session(message.session).warn(text, question=question, holds_cells=holds)
            case protocol.OffloadSession():
                await self._controller.offloads.request(self._session(message.session))
            case protocol.EndPrograms():
                await self._controller.programs.end(self._session(message.session))
            case protocol.SignalSession(session=session, signum=signum):
                self._controller.programs.interrupt(self._session(session))
                _signal(self._session(session), signum)
            case protocol.ListSessions():
                records = [
                    process.record() for process in self._controller.sessions.values() if process.connection is not None
                ]
                return protocol.Sessions(request=message.request, records=records)
            case protocol.ConfigureUsers(left=left):
                users = self._controller.users
                for limits in message.limits:
                    if limits.user not in left or limits.user in users.records:
                        self._controller.configure(limits)
                users.mark_left(left)
                self._launcher.share_out_machine()
                self._controller.limits.update()
            case protocol.SetPolicy(policy=policy):
                self._controller.set_policy(policy)
            case protocol.OpenUserServer(user=user):
                path = await self._user_servers.open(user)
                return protocol.UserServerOpen(request=message.request, path=path)
            case protocol.GetStatus():
                return protocol.Status(request=message.request, status=pack_part(self._status.document()))
            case protocol.AwaitChange():
                await self._controller.driver.wait_for_change()
            case protocol.GetCounts():
                return protocol.CountsAnswer(request=message.request, counts=self._controller.driver.counters.counts())
            case protocol.GetTimeline(seconds=seconds, columns=columns, end=end, user=user):
                window = TimelineWindow(seconds=seconds, columns=columns, end=end)
                timeline = self._controller.timeline(window, user)
                return protocol.TimelineAnswer(request=message.request, timeline=pack_part(timeline))
            case protocol.FindSockets(user=user, sockets=sockets):
                owned = await self._sockets.find(user, sockets)
                return protocol.OwnedSockets(request=message.request, sockets=owned)
            case protocol.ListShelves(user=user):
                return protocol.Shelves(request=message.request, shelves=self._shelves.listings(user))
            case protocol.TakeOffShelf(user=user, name=name):
                entries, used = self._shelves.take_off(user, name)
                return protocol.TakenOffShelf(request=message.request, entries=entries, used_bytes=used)
        self._status.forget()
        return protocol.Done(request=message.request)

    def _session(self, session: str) -> SessionHandle:
        process = self._controller.sessions.get(session)
        if process is None:
            raise SessionNotFound(f"there is no session {session} on this executor; it may have ended.")
        return process

    async def _detach(self, process: SessionHandle, seconds: float, *, restarted: bool) -> None:
        if not process.used:
            await self._supervisor.end(process)
            return
        if restarted:
            self._controller.programs.interrupt(process)
            _signal(process, signal.SIGINT)
        self._detached.begin(process, seconds, restarted=restarted)
        self._supervisor.keep(process)
        if restarted:  # the next session, which is started now, may want what this one holds
            await self._detached.settled(process)

    def _reclaim(self, message: protocol.ReclaimSession) -> SessionHandle:
        check_reclaim(message)
        process = self._session(message.session)
        if process.end_asked:
            raise SessionNotFound("it is just ending.")
        is_given_away = process.lingers_until is None and process.kernel != message.kernel
        if message.if_lingering and is_given_away:
            raise Refused("another notebook has it already.", reason="exists")
        self._detached.give_back(process)
        # Of two sessions of one kernel, which a gateway may leave when it is killed, the one it took last is meant.
        process.give_to(message, self._launcher.next_incarnation())
        self._supervisor.keep(process)
        return process


def _signal(process: SessionHandle, signum: int) -> None:
    if signum == signal.SIGINT:
        process.page.words[Word.INTERRUPTS] += 1
    process.send_signal(signum)
