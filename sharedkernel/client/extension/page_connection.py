"""A page's websocket to a kernel of this server: Jupyter's own, with three differences for kernels that are relays.

A page that asks for its widgets while a cell runs is answered here, since the kernel answers between cells only. What
the kernel asks a page is kept for the next one. And a page is not told that its kernel has died when only the relay
has: the next one has the same session, and passes on what it says and replies.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from sharedkernel.client.extension.recorder import Recorder
from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL

#: in the server's settings: its :class:`~sharedkernel.client.extension.recorder.Recorder`
RECORDER = "sharedkernel_recorder"


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
