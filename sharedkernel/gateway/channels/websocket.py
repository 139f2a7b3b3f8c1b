"""A client's websocket to its session.

Jupyter's own connection, with three differences. Outputs come from the kernel's one subscription instead of a socket
per client, so that a cell can be sent as soon as the websocket is open: nothing has to be asked back and forth first.
What does not understand binary frames (`jupyter lab --gateway-url`) is sent none. And what cannot be understood is
answered, and disturbs nobody.

A client that comes back is told first what it has missed (`catching_up.py`). One that means a certain process is heard
for that one only: what was asked of a process that is gone must not run in the next.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from jupyter_client.jsonutil import json_default
from jupyter_server.services.kernels.connection.base import serialize_msg_to_ws_v1
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado.websocket import WebSocketClosedError
from traitlets import Bool, Integer, default
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.errors import ProtocolError, SessionNotFound
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.gateway.channels.flow_control import Unread
from sharedkernel.gateway.channels.replay import Repeats, in_order, not_to_come, parse_seen
from sharedkernel.relay.wire import ATTACHED, PROCESS_HEADER, SEEN, WEBSOCKET_PROTOCOL, from_websocket, read_object
from sharedkernel.session.outbox import Missed
from sharedkernel.units import format_bytes

_CHANNELS = ("shell", "control", "stdin")
#: seconds that a session may take to say what was missed while it says other things
_CATCHING_UP_PATIENCE = 10.0


class SessionWebsocket(ZMQChannelsWebsocketConnection):
    """One client's connection to a :class:`~sharedkernel.gateway.kernels.kernel.SessionKernel`."""

    max_message_bytes = Integer(
        64 * 1024**2,
        help="Longest message that a client may send, in bytes; longer ones are refused with an error in the notebook.",
    ).tag(config=True)

    max_unsent_bytes = Integer(
        1024**2,
        min=1,
        help="Outputs that wait for a slow client, in bytes; beyond that its session waits until it has taken them.",
    ).tag(config=True)
    max_queued_cells = Integer(
        1000,
        min=1,
        help="Cells that a session may have to run at a time; more are refused with an error in the notebook.",
    ).tag(config=True)

    max_unread_bytes = Integer(
        128 * 1024**2,
        min=1,
        help="Messages of a client, in bytes, that may wait for a session that does not read them, on each channel; "
        "more are refused with an error in the notebook.",
    ).tag(config=True)

    #: what its client means with all that it says; None: whichever process the session has
    _process: str | None = None
    _told_of_restart = Bool(False)
    _closed = Bool(False)
    _unsent_bytes = 0
    #: while the client is told what it has missed: what comes from the session meanwhile, with its stream
    _held: list[tuple[Any, list[bytes]]] | None = None
    _held_bytes = 0
    #: what it was told as missed
    _repeats = Repeats([])
    _told_of_buffers = Bool(False)

    @default("limit_rate")
    def _default_limit_rate(self) -> bool:
        return False  # sessions are slowed down, and lose nothing

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Take this client's place, before the websocket is accepted; a stale connection of the same client goes."""
        # Or up to 65,536 signatures of what the session says are kept, for each old client: some 10 MB.
        self.session.digest_history_size = 0
        await self._register_session()
        await self.kernel_manager.wait_until_settled()
        self.websocket_handler.set_header(PROCESS_HEADER, self.kernel_manager.process)
        if PROCESS_HEADER in self.websocket_handler.request.headers:
            self._process = self.kernel_manager.process

    def connect(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Attach to the session; no message of the client is read before the result is there."""
        # A reply is several small frames: unasked, the network would hold the later ones back for 40 ms.
        self.websocket_handler.set_nodelay(True)
        self.multi_kernel_manager.notify_connect(self.kernel_id)
        self.multi_kernel_manager.add_restart_callback(self.kernel_id, self.on_kernel_restarted)
        ZMQChannelsWebsocketConnection._open_sockets.add(self)
        return asyncio.ensure_future(self._attach())

    async def _attach(self) -> None:
        await self.kernel_manager.wait_until_subscribed()
        if self._closed:
            return
        if self.kernel_id not in self.multi_kernel_manager:
            self.say_goodbye()
            return
        # From here on without a pause: no message falls between what was kept and what comes.
        seen = parse_seen(self.websocket_handler.get_query_argument(SEEN, None))
        backlog = self.kernel_manager.take_backlog(self.session_key)
        self.open_channels({} if backlog is None else backlog.channels)
        if seen is not None or self.kernel_manager.unheard:
            self._held = []
            self._catching_up = asyncio.ensure_future(self._catch_up(seen or []))
        if backlog is not None:
            self._replay(backlog)
        self.kernel_manager.attached.add(self)
        while self.kernel_manager.untold:
            self.kernel_manager.tell(*self.kernel_manager.untold.pop(0))

    def _replay(self, backlog: Backlog) -> None:
        if backlog.num_dropped:
            kept = format_bytes(self.multi_kernel_manager.backlog_bytes)
            self.write_stderr(
                f"{backlog.num_dropped} messages of this session were dropped while nobody was connected "
                f"(the gateway keeps the newest {kept}).",
                self.kernel_manager.activity.running_cell,
            )
        for frames in backlog.outputs.values():
            self.handle_outgoing_message(self.kernel_manager.outputs, frames)
        for channel, frames in backlog.replies:
            self.handle_outgoing_message(self.channels[channel], frames)

    async def _catch_up(self, seen: list[str]) -> None:
        """Tell the client what it has missed, then what was held back meanwhile."""
        missed = Missed([], is_cut=False)
        try:
            missed = await self._ask_for_missed(seen)
        except (SessionNotFound, ProtocolError) as error:
            self.log.info("a client of kernel %s may have missed something: %s", self.kernel_id, error)
        except Exception:
            self.log.exception("a client of kernel %s may have missed something", self.kernel_id)
        kernel = self.kernel_manager
        held = [(stream.channel, frames) for stream, frames in self._held or ()]
        has_stopped = self._held_bytes > self.multi_kernel_manager.backlog_bytes
        self._held = None
        self._read_on()
        if self._closed:
            return
        if missed.is_cut:
            self.write_stderr(
                "The oldest outputs of this session were dropped: it keeps a limited number of bytes while no gateway "
                "listens.",
                kernel.activity.running_cell,
            )
        streams = {**self.channels, "iopub": kernel.outputs}
        messages = not_to_come(missed.messages, held) if has_stopped else missed.messages
        for channel, frames in in_order(messages, held):
            try:
                self.handle_outgoing_message(streams[channel], frames)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self.log.info("session %s says to have said what is no message: %r", self.kernel_id, error)
        self._repeats = Repeats(messages)

    async def _ask_for_missed(self, seen: list[str]) -> Missed:
        """Return what the session says that its client has missed; nothing if it says other things instead.

        Raises
        ------
        SessionNotFound, ProtocolError
            As :meth:`~sharedkernel.gateway.kernels.kernel.SessionKernel.missed` does.
        """
        kernel = self.kernel_manager
        asking = asyncio.ensure_future(kernel.missed(seen, self.session.session))
        try:
            # A session in the middle of compiled code can neither answer nor say anything.
            while not (await asyncio.wait([asking], timeout=_CATCHING_UP_PATIENCE))[0] and not self._held:
                pass
            if not asking.done():
                return Missed([], is_cut=False)
            missed: Missed = asking.result()
            kernel.unheard = False
            return missed
        finally:
            asking.cancel()

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[Any]) -> None:
        """Pass a message of the session on to the client, or hold it back while the client is told of earlier ones."""
        if self._held is not None:
            self._hold_back(stream, outgoing_msg)
        elif not (stream.channel == "iopub" and self._repeats.is_one(outgoing_msg)):
            super().handle_outgoing_message(stream, outgoing_msg)

    def _hold_back(self, stream: Any, frames: list[bytes]) -> None:
        assert self._held is not None
        self._held.append((stream, frames))
        self._held_bytes += sum(map(len, frames))
        if self._held_bytes > self.multi_kernel_manager.backlog_bytes:
            # More than the session itself keeps of what was missed: its answer is on the way, or never comes.
            self.kernel_manager.flow.hold(self._catching_up)
            for channel in self.channels.values():
                channel.stop_on_recv()

    def _read_on(self) -> None:
        """Read again what was not read for what was held back."""
        self._held_bytes = 0
        self.kernel_manager.flow.release(self._catching_up)
        if not self._closed:
            for channel in self.channels.values():
                channel.on_recv_stream(self.handle_outgoing_message)

    def open_channels(self, kept: Mapping[str, ZMQStream] | None = None) -> None:
        """Connect to the session's process (and no longer to the one before), over the sockets *kept* if any."""
        if self._is_outdated:
            self.on_kernel_restarted()
        for stream in self.channels.values():
            stream.close()
        self.session.key = self.kernel_manager.session.key
        self.channels = dict(kept or {})
        for channel in _CHANNELS:
            if channel not in self.channels:
                # The identity is where the session's replies go: the same for a client that comes back.
                connect = getattr(self.kernel_manager, f"connect_{channel}")
                self.channels[channel] = connect(identity=self.session.bsession)
                self.channels[channel].channel = channel
                self.channels[channel].unread = Unread(self.channels[channel])
            self.channels[channel].on_recv_stream(self.handle_outgoing_message)

    @property
    def _is_outdated(self) -> bool:
        """Whether what its client says is for a process that the session no longer has."""
        return self._process not in (None, self.kernel_manager.process)

    def on_kernel_restarted(self) -> None:
        """Tell the client; one that means a certain process once, as it connects anew for the next."""
        if self._process is None or not self._told_of_restart:
            super().on_kernel_restarted()  # type: ignore[no-untyped-call]
        self._told_of_restart = True

    def say_goodbye(self) -> None:
        """Tell the client that the session is gone for good, and close."""
        self._send_status_message("dead")
        self.websocket_handler.close()

    def disconnect(self) -> None:  # type: ignore[override]
        """Detach; the last client's channels are kept for when it comes back."""
        self._closed = True
        self.kernel_manager.attached.discard(self)
        self.kernel_manager.flow.release(self)
        super().disconnect()

    # --- from the client ----------------------------------------------------------------------------------------------

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Pass a message on to the session, or answer why not."""
        try:
            channel, header = self._check(incoming_msg)
            if self._is_outdated:  # as the client has been told; it connects anew
                self.websocket_handler.close()
                return
            if len(incoming_msg) > self.max_message_bytes:
                self._refuse(
                    channel,
                    header,
                    f"this message has {format_bytes(len(incoming_msg))}; the gateway accepts "
                    f"{format_bytes(self.max_message_bytes)} (c.SessionWebsocket.max_message_bytes).",
                )
                return
            is_cell = header.get("msg_type") == "execute_request"
            if is_cell and self.kernel_manager.activity.num_cells >= self.max_queued_cells:
                self._refuse(
                    channel,
                    header,
                    f"this session has {self.max_queued_cells} cells to run already; wait for some of them to end "
                    "(c.SessionWebsocket.max_queued_cells).",
                )
                return
            if not self.channels:  # closed meanwhile
                return
            unread = self.channels[channel].unread
            if unread.num_bytes and unread.num_bytes + len(incoming_msg) > self.max_unread_bytes:
                self._refuse(
                    channel,
                    header,
                    f"{format_bytes(unread.num_bytes)} wait for this session already, which does not read them now; "
                    "send this again when it does (c.SessionWebsocket.max_unread_bytes).",
                )
                return
            if is_cell:
                self.kernel_manager.activity.ask(header)
            super().handle_incoming_message(incoming_msg)  # type: ignore[arg-type]
            unread.add(len(incoming_msg))
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.log.info("a client of kernel %s sent what is no message: %r", self.kernel_id, error)
            self.write_stderr(f"The gateway received something that is no Jupyter message and ignored it: {error}", {})

    def _check(self, incoming: str | bytes) -> tuple[str, dict[str, Any]]:
        """Return the channel and the header of a frame that Jupyter's own code can safely take apart."""
        header: Any
        if self.subprotocol == WEBSOCKET_PROTOCOL:
            if isinstance(incoming, str):
                raise ProtocolError("a text frame, where this protocol has binary ones.")
            channel, parts = from_websocket(incoming)
            header = read_object(parts[0])
        else:
            if isinstance(incoming, bytes):
                count = int.from_bytes(incoming[:4], "big")
                if not 0 < count < len(incoming) // 4:
                    raise ProtocolError("a binary frame that holds no message.")
                start = int.from_bytes(incoming[4:8], "big")
                end = int.from_bytes(incoming[8:12], "big") if count > 1 else len(incoming)
                message = read_object(incoming[start:end])
            else:
                message = read_object(incoming.encode())
            channel, header = message.get("channel", "shell"), message.get("header")
        if channel not in _CHANNELS:
            raise ProtocolError(f"a message for the channel {channel!r}; clients send on {', '.join(_CHANNELS)}.")
        if not (isinstance(header, dict) and isinstance(header.get("msg_id"), str)):
            raise ProtocolError("a message without an id.")
        return channel, header

    def _refuse(self, channel: str, header: dict[str, Any], sentence: str) -> None:
        """Answer a request with an error, as the session would have: a client must not wait for ever."""
        self.log.info("refused a message for kernel %s: %s", self.kernel_id, sentence)
        message_type = str(header.get("msg_type"))
        error = {"ename": "MessageRefused", "evalue": sentence, "traceback": [f"MessageRefused: {sentence}"]}
        if message_type == "execute_request":
            self._send("iopub", "error", error, header)
        if message_type.endswith("_request"):
            self._send(channel, message_type.removesuffix("request") + "reply", {"status": "error", **error}, header)
            self._send("iopub", "status", {"execution_state": "idle"}, header)
        else:
            self.write_stderr(sentence, self.kernel_manager.activity.running_cell)

    # --- to the client ------------------------------------------------------------------------------------------------

    def _send(self, channel: str, message_type: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        """Send a message of the gateway's own."""
        message = self.session.msg(message_type, content, parent=parent)
        if self.subprotocol == WEBSOCKET_PROTOCOL:
            self._write(serialize_msg_to_ws_v1(message, channel, self.session.pack))
        else:
            message["channel"] = channel
            self._write(json.dumps(message, default=json_default))

    def _write(self, frame: str | bytes) -> None:
        try:
            sent = self.write_message(frame, binary=isinstance(frame, bytes))
        except WebSocketClosedError:
            self.log.debug("a client of kernel %s went away", self.kernel_id)
            return
        self._unsent_bytes += len(frame)
        sent.add_done_callback(partial(self._sent, len(frame)))
        if self._unsent_bytes > self.max_unsent_bytes and not self._closed:
            self.kernel_manager.flow.hold(self)

    def _sent(self, num_bytes: int, sent: asyncio.Future[None]) -> None:
        if not sent.cancelled():
            sent.exception()  # that its client went away is heard elsewhere
        self._unsent_bytes -= num_bytes
        if self._unsent_bytes <= self.max_unsent_bytes // 2:
            self.kernel_manager.flow.release(self)

    def write_stderr(self, error_message: str, parent_header: dict[str, Any]) -> None:
        """Show a sentence in the notebook."""
        self.write_stream("stderr", error_message, parent_header)

    def write_stream(self, name: str, sentence: str, parent_header: dict[str, Any]) -> None:
        """Show a sentence in the notebook, on ``"stdout"`` or ``"stderr"``."""
        self._send("iopub", "stream", {"name": name, "text": sentence + "\n"}, parent_header)

    def _send_status_message(self, status: str) -> None:
        # For our relay: why the process is no longer there, or that the user has asked for another one.
        content = {"execution_state": status, "message": self.kernel_manager.reason}
        if self.kernel_manager.is_attaching:
            content[ATTACHED] = True
        self._send("iopub", "status", content, {})

    def _on_zmq_reply(self, stream: Any, msg_list: Any) -> None:
        if self.subprotocol == WEBSOCKET_PROTOCOL:
            self._write(serialize_msg_to_ws_v1(msg_list, stream.channel))
            return
        if msg_list["buffers"]:
            msg_list = self._without_buffers(msg_list)
        self._write(self._reserialize_reply(msg_list, channel=stream.channel))

    def _without_buffers(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return *message* without its binary buffers: the client's channel would break on them, for good."""
        if not self._told_of_buffers:
            self._told_of_buffers = True
            self.write_stderr(
                "This client cannot receive binary data (images of widgets, arrays), so it was left out; "
                "run `sharedkernel install` and choose the kernel it adds instead of `--gateway-url`.",
                message["parent_header"],
            )
        data = message["content"].get("data")
        if isinstance(data, dict) and "buffer_paths" in data:
            message["content"] = {**message["content"], "data": {**data, "buffer_paths": []}}
        return {**message, "buffers": []}
