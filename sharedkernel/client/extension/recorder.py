"""Listens to this Jupyter server's shared kernels, so that a page that was reloaded gets outputs and widgets back.

A page alone knows which outputs belong to which cell, and forgets it when it is reloaded or closed; a training that
runs for hours then shows nothing more. Here it is kept (`records.py`), and the page asks for it (`handlers.py`).
Widgets it asks the kernel for, which answers between cells; while one runs, the answer comes from here, on the page's
own websocket to its kernel (:class:`PageConnection`). What the kernel asks a page is kept for the next one.

A relay that dies is started again by Jupyter's server, and finds its session: here it is found out whether it has. If
so, no page is told that its kernel has died: the next relay passes on what the session says and replies.

Covers kernels that are relays. Those of ``--gateway-url`` have no sockets on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from jupyter_client.client import KernelClient
from jupyter_client.session import Session as MessageSession
from jupyter_events import EventLogger
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.utils import ensure_async

from sharedkernel.client.extension.records import CellRecords, CommRecords
from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import RELAY, SEEN, SESSION_DIED, WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.session_socket import SessionSocket

log = logging.getLogger(__name__)

#: schema of the server's events about what is done to kernels
KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
_RELAY = "sharedkernel.relay"
#: messages of a kernel that are remembered, so that its session finds one of its own among them
_HEARD_KEPT = 16
#: seconds that a relay may take to be started again and to reach its session
_RESTART_PATIENCE = 10.0
#: seconds between looks at whether it has been started
_RESTART_INTERVAL = 0.05

#: in the server's settings: its :class:`~sharedkernel.client.extension.recorder.Recorder`
RECORDER = "sharedkernel_recorder"


@dataclass(slots=True, kw_only=True, eq=False)
class _Kernel:
    """One kernel that is listened to."""

    records: CellRecords
    socket: SessionSocket
    on_died: Callable[[], None]
    #: of its process: one that is started again elsewhere is listened to anew
    ports: list[int]
    comms: CommRecords = field(default_factory=CommRecords)
    #: headers of the messages that its session published last
    heard: deque[bytes] = field(default_factory=lambda: deque(maxlen=_HEARD_KEPT))
    #: finds out whether its session goes on, since its process died
    fate: asyncio.Task[bool] | None = None


class Recorder:
    """Keeps what the cells of shared kernels have shown, from each session's start to its end.

    Parameters
    ----------
    kernels
        The server's kernels.
    events
        Where the server tells of their starts and ends.
    """

    def __init__(self, kernels: MappingKernelManager, events: EventLogger) -> None:
        self._kernels = kernels
        self._followed: dict[str, _Kernel] = {}
        events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel_action)

    def records(self, kernel_id: str) -> CellRecords | None:
        """Return what a kernel's cells have shown; None when it is none of ours."""
        kernel = self._followed.get(kernel_id)
        return None if kernel is None else kernel.records

    def answer(self, kernel_id: str, request: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
        """Return messages that answer a page's message about widgets, with their channels, if its kernel cannot now.

        Parameters
        ----------
        kernel_id
            Of this server.
        request
            The page's message on the shell channel, from its header on; what it tells a widget is recorded.

        Raises
        ------
        ProtocolError
            When it is no message.
        """
        kernel = self._followed.get(kernel_id)
        # Looked for in the bytes first: most messages are about something else.
        if kernel is None or b"comm_" not in request[0]:
            return []
        kernel.comms.take_from_page(request)
        return kernel.comms.answer(request) if kernel.records.is_running else []

    def take_stdin(self, kernel_id: str, message: Sequence[bytes]) -> None:
        """Take in what a kernel asks of a page, or what a page answers, from its header on."""
        kernel = self._followed.get(kernel_id)
        if kernel is not None:
            names = ("header", "parent_header", "metadata", "content")
            question = dict(zip(names, map(wire.read_object, message), strict=False))
            kernel.records.ask(question if question["header"].get("msg_type") == "input_request" else None)

    async def goes_on(self, kernel_id: str) -> bool:
        """Return whether a kernel whose process has died has the same session once it is started again.

        Raises
        ------
        KeyError
            When it is shut down or restarted meanwhile.
        """
        kernel = self._followed[kernel_id]
        while self._followed[kernel_id] is kernel and (fate := kernel.fate) is not None:
            await asyncio.wait([fate])
            if fate is kernel.fate and not fate.cancelled():  # else it has died once more
                return fate.result()
        raise KeyError(kernel_id)

    def close(self) -> None:
        """Listen no more."""
        for kernel_id in list(self._followed):
            self._forget(kernel_id)

    async def _on_kernel_action(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id = data.get("kernel_id")
        if data.get("status") != "success" or not isinstance(kernel_id, str):
            return
        if data.get("action") == "shutdown" or kernel_id not in self._kernels:
            self._forget(kernel_id)
        elif data.get("action") in ("start", "restart") and not self._is_followed(kernel_id):
            self._listen(kernel_id)

    def _is_followed(self, kernel_id: str) -> bool:
        """Return whether a kernel whose process has died is found out about, and was started again where it was."""
        kernel, manager = self._followed.get(kernel_id), self._kernels.get_kernel(kernel_id)
        if kernel is None or kernel.fate is None or kernel.fate.done():
            return False
        return list(manager.ports) == kernel.ports

    def _listen(self, kernel_id: str) -> None:
        manager: Any = self._kernels.get_kernel(kernel_id)
        spec = getattr(manager, "kernel_spec", None)
        if spec is None or _RELAY not in spec.argv:
            return
        before = self._forget(kernel_id)
        # Not Jupyter's stream, which takes three turns of the event loop for each message. Nor a shadow of the socket
        # that the manager makes: once a shadow is closed, what it shadowed closes whoever has its address by then.
        # Nor one of the manager's context, whose end would wait for it.
        client = KernelClient(context=zmq.Context.instance())
        client.load_connection_info(manager.get_connection_info())
        kernel = self._followed[kernel_id] = _Kernel(
            records=self._new_records(kernel_id),
            socket=SessionSocket(client.connect_iopub(), "iopub"),
            on_died=lambda: self._on_died(kernel_id, kernel),
            ports=list(manager.ports),
        )
        if before is not None:
            kernel.heard = before.heard  # a relay that is started again may have the same session
        self._kernels.add_restart_callback(kernel_id, kernel.on_died)
        signer = wire.Signer(manager.session.key, manager.session.signature_scheme)

        def take(frames: list[bytes]) -> None:
            try:
                self._take(kernel, wire.from_frames(frames, signer)[1])
            except ProtocolError as error:
                log.warning("kernel %s published something that is no message: %s", kernel_id, error)

        kernel.socket.on_recv(take)

    @staticmethod
    def _take(kernel: _Kernel, parts: Sequence[bytes]) -> None:
        """Take in a message that was published, from its header on."""
        header, parent, content = (wire.read_object(parts[place]) for place in (0, 1, 3))
        kernel.records.take(str(header.get("msg_type")), str(parent.get("msg_id", "")), content)
        kernel.comms.take(header, content, parts[4:])
        if not str(header.get("session")).startswith(RELAY):
            kernel.heard.append(parts[0])

    def _on_died(self, kernel_id: str, kernel: _Kernel) -> None:
        """Begin to find out what becomes of a kernel whose process has died."""
        if kernel.fate is not None:
            kernel.fate.cancel()
        manager: Any = self._kernels.get_kernel(kernel_id)
        relay = getattr(manager.provisioner, "process", None)
        has_session = getattr(relay, "returncode", None) != SESSION_DIED
        kernel.fate = asyncio.ensure_future(self._find_out(kernel_id, kernel, has_session))

    async def _find_out(self, kernel_id: str, kernel: _Kernel, has_session: bool) -> bool:
        """Return whether a kernel has the same session still; forget what its cells have shown if not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESTART_PATIENCE):
                if has_session and await self._has_same_session(self._kernels.get_kernel(kernel_id), kernel):
                    return True
        kernel.records, kernel.comms = self._new_records(kernel_id), CommRecords()
        return False

    @staticmethod
    async def _has_same_session(manager: Any, kernel: _Kernel) -> bool:
        """Ask the next process of a kernel, as soon as there is one.

        It is told which messages were heard, so that it goes on with the next one. One that dies as well before it
        answers is not asked any more: the question would reach the one after it, and what it names be out of date.
        """
        speakers = {str(wire.read_object(header).get("session")) for header in kernel.heard}
        # After a restart at other ports, nobody here listens to the kernel.
        while list(manager.ports) == kernel.ports:
            if await ensure_async(manager.is_alive()):
                asking = asyncio.ensure_future(_ask_who(manager, [header.decode() for header in kernel.heard]))
                try:
                    while not asking.done() and await ensure_async(manager.is_alive()):
                        await asyncio.wait([asking], timeout=_RESTART_INTERVAL)
                    if asking.done():
                        return asking.result() in speakers
                finally:
                    asking.cancel()
            await asyncio.sleep(_RESTART_INTERVAL)
        return False

    def _new_records(self, kernel_id: str) -> CellRecords:
        return CellRecords(lambda: self._is_attended(kernel_id))

    def _is_attended(self, kernel_id: str) -> bool:
        return kernel_id in self._kernels and self._kernels.kernel_model(kernel_id)["connections"] > 0

    def _forget(self, kernel_id: str) -> _Kernel | None:
        kernel = self._followed.pop(kernel_id, None)
        if kernel is not None:
            kernel.socket.close()
            if kernel.fate is not None:
                kernel.fate.cancel()
            if kernel_id in self._kernels:
                self._kernels.remove_restart_callback(kernel_id, kernel.on_died)
        return kernel


async def _ask_who(manager: Any, heard: Sequence[str]) -> str:
    """Return the message session of the process behind a relay, which waits until it has reached it.

    Parameters
    ----------
    manager
        The kernel's.
    heard
        Headers of the messages of its session that were heard last.
    """
    session = MessageSession(key=manager.session.key, signature_scheme=manager.session.signature_scheme)
    stream = manager.connect_control(identity=session.bsession)
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    stream.on_recv(answer.set_result)  # one question has one answer
    try:
        session.send(stream, "kernel_info_request", {SEEN: heard})
        return str(session.deserialize(session.feed_identities(await answer)[1])["header"]["session"])
    finally:
        stream.close(linger=0)


class PageConnection(ZMQChannelsWebsocketConnection):
    """One page's connection to a kernel of any kind."""

    @property
    def _recorder(self) -> Recorder:
        return self.websocket_handler.settings[RECORDER]

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Pass a message of the page on, or answer it."""
        answers = self._answers(incoming_msg) if isinstance(incoming_msg, bytes) else []
        for channel, parts in answers:
            self.write_message(wire.to_websocket(channel, parts), binary=True)
        if not answers:
            super().handle_incoming_message(incoming_msg)  # type: ignore[arg-type]

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[bytes]) -> None:
        """Pass a message of the kernel on, and keep a question: the page that is asked may be reloaded."""
        if getattr(stream, "channel", stream) == "stdin":
            self._keep_question(outgoing_msg)
        super().handle_outgoing_message(stream, outgoing_msg)

    def connect(self) -> Any:
        """Begin to serve a page; keep what was asked while none was there."""
        waiting = self.multi_kernel_manager._kernel_buffers.get(self.kernel_id, {})
        for channel, frames in waiting.get("buffer", ()):
            if channel == "stdin":
                self._keep_question(frames)
        return super().connect()

    def _keep_question(self, frames: list[bytes]) -> None:
        with contextlib.suppress(ProtocolError):
            _, parts = self.session.feed_identities(frames)
            self._recorder.take_stdin(self.kernel_id, parts[1:])  # type: ignore[arg-type]

    def _answers(self, frame: bytes) -> list[tuple[str, list[bytes]]]:
        """Return what answers a message in the place of the session, which runs a cell; mostly nothing."""
        if self.subprotocol == WEBSOCKET_PROTOCOL and not self.multi_kernel_manager.allowed_message_types:
            with contextlib.suppress(ProtocolError):
                channel, parts = wire.from_websocket(frame)
                if channel == "shell":
                    return self._recorder.answer(self.kernel_id, parts)
                if channel == "stdin":
                    self._recorder.take_stdin(self.kernel_id, parts)
        return []

    def on_kernel_restarted(self) -> None:
        """Notify the page that its kernel has died, unless its session lives."""
        if self._recorder.records(self.kernel_id) is None:
            super().on_kernel_restarted()  # type: ignore[no-untyped-call]
        else:
            self._finding_out = asyncio.ensure_future(self._find_out())

    async def _find_out(self) -> None:
        try:
            goes_on = await self._recorder.goes_on(self.kernel_id)
        except KeyError:  # it was shut down or restarted meanwhile
            return
        if goes_on:
            self.log.info("the relay of kernel %s was started again; its session goes on", self.kernel_id)
        elif self.websocket_handler.ws_connection is not None:
            super().on_kernel_restarted()  # type: ignore[no-untyped-call]
