"""Listens to this Jupyter server's shared kernels, so that a page that was reloaded gets outputs and widgets back.

A page alone knows which outputs belong to which cell, and forgets it when it is reloaded or closed; a training that
runs for hours then shows nothing more. Here it is kept (`cell_record.py`), and the page asks for it (`handlers.py`).
Widgets it asks the kernel for, which answers between cells; while one runs, the answer comes from here
(`comm_record.py`).

A relay that dies is started again by Jupyter's server, and finds its session: here it is found out whether it has.

Covers kernels that are relays. Those of ``--gateway-url`` have no sockets on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.session import Session as MessageSession
from jupyter_events import EventLogger
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.utils import ensure_async

from sharedkernel.client.extension.cell_record import CellRecords
from sharedkernel.client.extension.comm_record import CommRecords
from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import RELAY, SEEN
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


def is_relay(kernel: Any) -> bool:
    """Return whether the kernel with this manager is a relay."""
    spec = getattr(kernel, "kernel_spec", None)
    return spec is not None and _RELAY in spec.argv


class Recorder:
    """Keeps what the cells of shared kernels have shown, from each kernel's start to its end.

    Parameters
    ----------
    kernels
        The server's kernels.
    events
        Where the server tells of their starts and ends.
    """

    def __init__(self, kernels: MappingKernelManager, events: EventLogger) -> None:
        self._kernels = kernels
        self._records: dict[str, CellRecords] = {}
        self._comms: dict[str, CommRecords] = {}
        #: headers of the messages that sessions published last, by kernel
        self._heard: dict[str, deque[bytes]] = {}
        self._sockets: dict[str, SessionSocket] = {}
        events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel_action)

    def records(self, kernel_id: str) -> CellRecords | None:
        """Return what a kernel's cells have shown; None when it is none of ours."""
        return self._records.get(kernel_id)

    def take(self, kernel_id: str, parts: Sequence[bytes]) -> None:
        """Take in a message that was published for a kernel.

        Parameters
        ----------
        kernel_id
            Of this server.
        parts
            From its header on.

        Raises
        ------
        ProtocolError
            When it is no message.
        """
        if (records := self._records.get(kernel_id)) is not None:
            header, parent, content = (wire.read_object(parts[place]) for place in (0, 1, 3))
            records.take(str(header.get("msg_type")), str(parent.get("msg_id", "")), content)
            self._comms[kernel_id].take(header, content, parts[4:])
            if not str(header.get("session")).startswith(RELAY):
                self._heard[kernel_id].append(parts[0])

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
        records = self._records.get(kernel_id)
        # Looked for in the bytes first: most messages are about something else.
        if records is None or b"comm_" not in request[0]:
            return []
        comms = self._comms[kernel_id]
        comms.take_from_page(request)
        return comms.answer(request) if records.is_running else []

    async def goes_on(self, kernel_id: str) -> bool:
        """Return whether a kernel, whose relay is about to be started again, still has the same session then.

        The relay is told which messages were heard, so that it goes on with the next one. One that dies as well before
        it answers is not asked any more: the question would reach the relay after it, and what it names be out of date.
        """
        manager: Any = self._kernels.get_kernel(kernel_id)
        ports, speakers = list(manager.ports), set(map(_speaker, self._heard.get(kernel_id, ())))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESTART_PATIENCE):
                # After a restart at other ports, nobody here listens to the kernel.
                while list(manager.ports) == ports:
                    if await ensure_async(manager.is_alive()):
                        heard = [header.decode() for header in self._heard.get(kernel_id, ())]
                        asking = asyncio.ensure_future(_ask_who(manager, heard))
                        try:
                            while not asking.done() and await ensure_async(manager.is_alive()):
                                await asyncio.wait([asking], timeout=_RESTART_INTERVAL)
                            if asking.done():
                                return asking.result() in speakers
                        finally:
                            asking.cancel()
                    await asyncio.sleep(_RESTART_INTERVAL)
        return False

    def close(self) -> None:
        """Listen no more."""
        for kernel_id in list(self._records):
            self._forget(kernel_id)

    async def _on_kernel_action(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id = data.get("kernel_id")
        if data.get("status") != "success" or not isinstance(kernel_id, str):
            return
        if data.get("action") == "shutdown" or kernel_id not in self._kernels:
            self._forget(kernel_id)
        elif data.get("action") in ("start", "restart"):
            self._listen(kernel_id)

    def _listen(self, kernel_id: str) -> None:
        manager: Any = self._kernels.get_kernel(kernel_id)
        if not is_relay(manager):
            return
        heard = self._heard.get(kernel_id, deque(maxlen=_HEARD_KEPT))
        self._forget(kernel_id)
        self._records[kernel_id] = CellRecords(lambda: self._is_attended(kernel_id))
        self._comms[kernel_id] = CommRecords()
        self._heard[kernel_id] = heard  # a relay that is started again may have the same session
        signer = wire.Signer(manager.session.key, manager.session.signature_scheme)
        # Not Jupyter's stream, which takes three turns of the event loop for each message.
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(ConnectionFileMixin.connect_iopub(manager))
        socket = self._sockets[kernel_id] = SessionSocket(plain, "iopub")

        def take(frames: list[bytes]) -> None:
            try:
                self.take(kernel_id, wire.from_frames(frames, signer)[1])
            except ProtocolError as error:
                log.warning("kernel %s published something that is no message: %s", kernel_id, error)

        socket.on_recv(take)

    def _is_attended(self, kernel_id: str) -> bool:
        return kernel_id in self._kernels and self._kernels.kernel_model(kernel_id)["connections"] > 0

    def _forget(self, kernel_id: str) -> None:
        self._records.pop(kernel_id, None)
        self._comms.pop(kernel_id, None)
        self._heard.pop(kernel_id, None)
        socket = self._sockets.pop(kernel_id, None)
        if socket is not None:
            socket.close()


def _speaker(header: bytes) -> str:
    """Return the message session of the process that has sent a message."""
    return str(wire.read_object(header).get("session"))


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
