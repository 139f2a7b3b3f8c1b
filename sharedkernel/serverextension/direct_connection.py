"""A page's websocket to a kernel of this server: to the session itself where that is possible.

Jupyter's own connection hands a message to the relay, which hands it to the gateway. This one does without the relay
for kernels that are one, and is Jupyter's own for all others. A page that speaks the old framing, or whose session
cannot be reached from here, goes by the relay, and the log says why.

Jupyter's limits on outputs, on tracebacks and on types of messages hold here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado.websocket import WebSocketClosedError

from sharedkernel.errors import ProtocolError
from sharedkernel.forwarding.held import Held, HeldMessage
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from sharedkernel.serverextension.direct_kernels import DirectKernel, DirectKernels
from sharedkernel.serverextension.direct_session import DirectSession

#: in the server's settings: its :class:`~sharedkernel.serverextension.direct_kernels.DirectKernels`
SETTING = "sharedkernel_direct_kernels"
#: bytes that may wait for a page; one that takes less is disconnected, comes back and gets what it has missed
_MAX_UNSENT_BYTES = 128 * 1024**2


class DirectWebsocketConnection(ZMQChannelsWebsocketConnection):
    """One page's connection to a kernel of any kind."""

    _direct: DirectSession | None = None
    _kernel: DirectKernel | None = None
    #: the page's messages while the way by the relay is being opened; None: they are sent
    _waiting: Held | None = None
    _closed = False
    _num_unsent_bytes = 0

    def connect(self) -> asyncio.Future[None] | None:  # type: ignore[override]
        """Connect the page to its kernel; no message of it is read before the result is done."""
        self._kernel = self._find_kernel()
        if self._kernel is None:
            return super().connect()
        manager = self.multi_kernel_manager
        manager.notify_connect(self.kernel_id)
        manager.get_buffer(self.kernel_id, self.session_key)  # drops what is kept for another page, as Jupyter does
        manager.add_restart_callback(self.kernel_id, self.on_kernel_restarted)
        manager.add_restart_callback(self.kernel_id, self.on_restart_failed, "dead")
        ZMQChannelsWebsocketConnection._open_sockets.add(self)
        # A reply is several small frames: by default the network delays the later ones by 40 ms.
        self.websocket_handler.set_nodelay(True)
        self._direct = self._kernel.session(self.session.session)
        return asyncio.ensure_future(self._direct.attach(self))

    def _find_kernel(self) -> DirectKernel | None:
        kernels: DirectKernels = self.websocket_handler.settings[SETTING]
        kernel = kernels.get(self.kernel_id)
        if kernel is None:
            return None
        if kernel.is_relayed(self.session.session):
            reason = "it went that way before"
        elif self.subprotocol != WEBSOCKET_PROTOCOL:
            reason = f"it does not speak {WEBSOCKET_PROTOCOL}"
        else:
            return kernel
        self._say_why(reason)
        return None

    def _say_why(self, reason: str) -> None:
        self.log.warning("a page of kernel %s goes by the relay: %s.", self.kernel_id, reason.rstrip("."))

    def disconnect(self) -> None:  # type: ignore[override]
        """Disconnect the page from its kernel; its session is kept for a while, as Jupyter keeps messages."""
        self._closed = True
        direct, self._direct = self._direct, None
        super().disconnect()
        if direct is None or self._kernel is None:
            return
        if self.kernel_id in self.multi_kernel_manager:
            self.multi_kernel_manager.stop_buffering(self.kernel_id)  # there is nothing on the relay's sockets
        if direct.detach(self):
            if self.multi_kernel_manager.buffer_offline_messages:
                self._kernel.keep_one(direct)
            else:
                self._kernel.close_session(direct)

    def on_kernel_restarted(self) -> None:
        """Tell the page that its kernel died; not if it was only the relay, without which it goes on."""
        if self._direct is not None and self._kernel is not None and self._direct.is_joined:
            self.log.warning("the relay of kernel %s was started again; its session goes on", self.kernel_id)
            self._kernel.heed_new_relay()
        else:
            super().on_kernel_restarted()  # type: ignore[no-untyped-call]

    # --- from the page -----------------------------------

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Pass a message of the page on."""
        if self._direct is None and self._waiting is None:
            super().handle_incoming_message(incoming_msg)  # type: ignore[arg-type]
            return
        try:
            if isinstance(incoming_msg, str):
                raise ProtocolError("a text frame.")
            channel, parts = wire.from_websocket(incoming_msg)
            if channel == "iopub" or not self._is_allowed(parts[0]):
                self.log.warning("a page of kernel %s sent what is not allowed on %s", self.kernel_id, channel)
            elif self._direct is not None:
                self._direct.receive(channel, [], parts)
            elif self._waiting is not None and not self._waiting.add(HeldMessage(channel, parts, None)):
                self.log.warning("dropped a message for kernel %s: too much waits for its relay", self.kernel_id)
        except ProtocolError as error:
            self.log.warning("dropped what a page of kernel %s sent: %s", self.kernel_id, error)

    def _is_allowed(self, header: bytes) -> bool:
        allowed = self.multi_kernel_manager.allowed_message_types
        return not allowed or wire.read_object(header).get("msg_type") in allowed

    # --- to the page -----------------------------------

    def write(self, channel: str, parts: Sequence[bytes]) -> None:
        """Send the page a message of its session, unless a limit of Jupyter's forbids it."""
        if channel == "iopub" and (self.limit_rate or not self.multi_kernel_manager.allow_tracebacks):
            message: dict[str, Any] = {"header": None, "parent_header": None, "content": None}
            parts = list(parts)
            self._on_error(channel, message, parts)  # type: ignore[no-untyped-call]
            if self._limit_rate(channel, message, parts):  # type: ignore[no-untyped-call]
                return
        frame = wire.to_websocket(channel, parts)
        try:
            written = self.websocket_handler.write_message(frame, binary=True)
        except WebSocketClosedError:
            return
        self._num_unsent_bytes += len(frame)
        written.add_done_callback(partial(self._on_written, len(frame)))
        if self._num_unsent_bytes > _MAX_UNSENT_BYTES:
            self.log.warning("a page of kernel %s takes too little, and has to come back", self.kernel_id)
            self.websocket_handler.close()

    def _on_written(self, num_bytes: int, written: asyncio.Future[None]) -> None:
        self._num_unsent_bytes -= num_bytes
        if not written.cancelled():
            written.exception()  # that the page went away is noticed elsewhere

    # --- the way by the relay -----------------------------------

    def go_by_relay(self, reason: str, held: Held) -> None:
        """Use the relay from now on, beginning with the messages in *held*."""
        self._say_why(reason)
        self._direct, self._waiting = None, held
        if not self._closed and self.kernel_id in self.multi_kernel_manager:
            self.create_stream()  # type: ignore[no-untyped-call]
            self._switching = asyncio.ensure_future(self._switch(self.nudge()))

    async def _switch(self, connected: asyncio.Future[None]) -> None:
        await connected
        if self._closed or self._waiting is None:
            return
        for stream in self.channels.values():
            stream.on_recv_stream(self.handle_outgoing_message)
        held, self._waiting = self._waiting, None
        for message in held.take():
            super().handle_incoming_message(wire.to_websocket(message.channel, message.parts))  # type: ignore[arg-type]
