"""A client's websocket to its session.

Jupyter's own connection, with three differences. Outputs come from the kernel's one subscription instead of a socket
per client, so a client can send a cell as soon as the websocket is open, without a handshake. A client that does not
understand binary frames (`jupyter lab --gateway-url`) gets none. And an invalid message is answered, and affects no
other.

A client that comes back first gets the messages that it has missed (`replay.py`). A client that names a process is
served for that process only: a request to a process that is gone must not run in the next one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import zmq
from jupyter_client.jsonutil import json_default
from jupyter_client.session import DELIM
from jupyter_server.services.kernels.connection.base import serialize_msg_to_ws_v1
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from traitlets import Bool, Integer, default

from sharedkernel.errors import ProtocolError, SessionNotFound
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.gateway.channels.client_messages import CLIENT_CHANNELS, parse_frame, refusal_answers, without_buffers
from sharedkernel.gateway.channels.client_protocol import ClientWriter
from sharedkernel.gateway.channels.outputs import SessionOutputs
from sharedkernel.gateway.channels.replay import ReplayFilter, in_order, is_answered, not_to_come, parse_seen
from sharedkernel.gateway.channels.user_bytes import TooManyBytes, UserBudgets
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import ATTACHED, ENDED, PROCESS_HEADER, SEEN, SUCCESSOR, WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.session_socket import SessionSocket
from sharedkernel.session.channels.message_log import Missed
from sharedkernel.units import format_bytes

#: seconds that a session may take to answer which messages were missed, from its first other one on
_REPLAY_PATIENCE = 10.0


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

    #: the process that the client's requests are for; None: whichever the session has
    _process: str | None = None
    _notified_of_restart = Bool(False)
    _closed = Bool(False)
    #: signs messages for the session's current process
    _signer = wire.Signer(b"", "hmac-sha256")
    #: whether messages pass as they are: nothing in the configuration concerns single ones
    _is_plain = False
    #: messages of the session that arrive during a replay, with their sockets; None: there is no replay
    _held: list[tuple[SessionSocket, list[bytes]]] | None = None
    _held_bytes = 0
    #: outputs that were replayed
    _replayed = ReplayFilter([])
    _notified_of_buffers = Bool(False)

    # A session that sends too fast is slowed down, and loses nothing.
    _default_limit_rate = default("limit_rate")(lambda self: False)

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Register the client, before the websocket is accepted; a stale connection of the same client is closed."""
        # Or up to 65,536 signatures of the session's messages are kept for each client: some 10 MB.
        self.session.digest_history_size = 0
        await self._register_session()
        await self.kernel_manager.wait_until_settled()
        self.websocket_handler.set_header(PROCESS_HEADER, self.kernel_manager.process)
        if PROCESS_HEADER in self.websocket_handler.request.headers:
            self._process = self.kernel_manager.process

    def withdraw(self) -> None:
        """Undo :meth:`prepare`: the client has hung up before it was attached."""
        if self._open_sessions.get(self.session_key) is self.websocket_handler:
            del self._open_sessions[self.session_key]

    def connect(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Attach to the session; no message of the client is read before the result is done."""
        # A reply is several small frames: by default the network delays the later ones by 40 ms.
        self.websocket_handler.set_nodelay(True)
        self._writer = ClientWriter(
            self.websocket_handler,
            flow=self._outputs.flow,
            budget=self._budgets.unsent,
            max_unsent_bytes=self.max_unsent_bytes,
        )
        manager = self.multi_kernel_manager
        is_filtered = self.limit_rate or not manager.allow_tracebacks or manager.allowed_message_types
        self._is_plain = self.subprotocol == WEBSOCKET_PROTOCOL and not is_filtered
        manager.notify_connect(self.kernel_id)
        manager.add_restart_callback(self.kernel_id, self.on_kernel_restarted)
        ZMQChannelsWebsocketConnection._open_sockets.add(self)
        return asyncio.ensure_future(self._attach())

    async def _attach(self) -> None:
        await self.kernel_manager.wait_until_subscribed()
        if self._closed:
            return
        if self.kernel_id not in self.multi_kernel_manager:
            self.close_for_good()
            return
        if self._outputs.is_short_of_descriptors:
            return self.reconnect()
        # No await from here on: no message is lost between the backlog and the live stream.
        seen = parse_seen(self.websocket_handler.get_query_argument(SEEN, None))
        backlog = self._outputs.take_backlog(self.session_key)
        self.open_channels({} if backlog is None else backlog.channels)
        if seen is not None or self._outputs.has_unheard:
            self._held = []
            self._replaying = asyncio.ensure_future(self._replay_missed(seen))
        if not seen and self.kernel_manager.activity.state == "busy":  # the session itself says so only at changes
            self._send("iopub", "status", {"execution_state": "busy"}, self.kernel_manager.activity.running_cell)
        if backlog is not None:
            self._send_backlog(backlog)
        self._outputs.attach(self)

    @property
    def _outputs(self) -> SessionOutputs:
        return self.kernel_manager.outputs

    def _send_backlog(self, backlog: Backlog) -> None:
        if backlog.num_dropped:
            kept = format_bytes(self.multi_kernel_manager.backlog_bytes)
            self.write_stderr(
                f"{backlog.num_dropped} messages of this session were dropped while nobody was connected "
                f"(the gateway keeps the newest {kept}).",
                self.kernel_manager.activity.running_cell,
            )
        assert self._outputs.socket is not None
        for frames in backlog.outputs.values():
            self.handle_outgoing_message(self._outputs.socket, frames)
        for channel, frames in backlog.replies:
            self.handle_outgoing_message(self.channels[channel], frames)

    async def _replay_missed(self, seen: list[str] | None) -> None:
        """Send the client the messages that it has missed, then those that were held back meanwhile."""
        missed = Missed([], is_cut=False)
        try:
            missed = await self._ask_for_missed(seen)
        except zmq.ZMQError:  # this gateway can open no more files
            self.reconnect()
        except (SessionNotFound, ProtocolError) as error:
            self.log.info("a client of kernel %s may have missed something: %s", self.kernel_id, error)
        except Exception:
            self.log.exception("a client of kernel %s may have missed something", self.kernel_id)
        held = [(stream.channel, frames) for stream, frames in self._held or ()]
        has_stopped = self._held_bytes > self.multi_kernel_manager.backlog_bytes
        self._held = None
        self._outputs.flow.release(self._replaying)
        if self._closed:
            return
        self._read_channels()
        if missed.is_cut:
            self.write_stderr(
                "The oldest outputs of this session were dropped: it keeps a limited number of bytes while no gateway "
                "listens.",
                self.kernel_manager.activity.running_cell,
            )
        streams = {**self.channels, "iopub": self._outputs.socket}
        messages = not_to_come(missed.messages, held) if has_stopped else missed.messages
        for channel, frames in in_order(messages, held):
            try:
                self.handle_outgoing_message(streams[channel], frames)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self.log.info("session %s reports an invalid message as missed: %r", self.kernel_id, error)
        self._replayed = ReplayFilter(messages)

    async def _ask_for_missed(self, seen: list[str] | None) -> Missed:
        """Return the messages that the client has missed; none if the session does not answer, but sends others."""
        kernel = self.kernel_manager
        successor = self.websocket_handler.get_query_argument(SUCCESSOR, "")
        control, client = kernel.connect("control"), self.session.session
        asking = asyncio.ensure_future(kernel.missed.ask(control, seen, client, successor))
        try:
            if not await is_answered(asking, lambda: len(self._held or ()), _REPLAY_PATIENCE):
                return Missed([], is_cut=False)
            missed: Missed = asking.result()
            self._outputs.has_unheard = False
            return missed
        finally:
            asking.cancel()

    def handle_outgoing_message(self, stream: SessionSocket, outgoing_msg: list[Any]) -> None:  # type: ignore[override]
        """Send a message of the session to the client, or hold it back during a replay of earlier ones."""
        if self._held is not None:
            self._hold_back(stream, outgoing_msg)
        elif stream.channel == "iopub" and self._replayed.is_repeated(outgoing_msg):
            pass
        elif self._is_plain:
            pieces = wire.to_websocket_pieces(stream.channel, outgoing_msg[outgoing_msg.index(DELIM) + 2 :])
            self._writer.send(pieces)
        else:
            super().handle_outgoing_message(stream, outgoing_msg)  # type: ignore[arg-type]

    def _hold_back(self, stream: SessionSocket, frames: list[bytes]) -> None:
        assert self._held is not None
        self._held.append((stream, frames))
        self._held_bytes += sum(map(len, frames))
        if self._held_bytes > self.multi_kernel_manager.backlog_bytes:
            # More than the session itself keeps for its answer: that is on its way, or never comes.
            self._outputs.flow.hold(self._replaying)
            for channel in self.channels.values():
                channel.stop_on_recv()

    def _read_channels(self) -> None:
        for socket in self.channels.values():
            socket.on_recv(partial(self.handle_outgoing_message, socket))

    def open_channels(self, kept: Mapping[str, SessionSocket] | None = None) -> None:
        """Connect to the session's current process, over the sockets *kept* if any."""
        if self._is_outdated:
            self.on_kernel_restarted()
        for stream in self.channels.values():
            stream.close()
        self.session.key = self.kernel_manager.session.key
        self._signer = wire.Signer(self.session.key, self.session.signature_scheme)
        self.channels = dict(kept or {})
        for channel in CLIENT_CHANNELS:
            if channel not in self.channels:
                # The session sends replies to this identity, which is the same for a client that comes back.
                count = partial(self._budgets.unread.hold, self.websocket_handler.current_user.username, object())
                identity = self.session.bsession
                try:
                    self.channels[channel] = self.kernel_manager.connect(channel, identity, hold_unread=count)
                except zmq.ZMQError:  # this gateway can open no more files
                    return self.reconnect()
        self._read_channels()

    @property
    def answers_lost_cells(self) -> bool:
        """Whether the client answers its running cells once their process is gone: one that names it does."""
        return self._process is not None

    @property
    def _is_outdated(self) -> bool:
        """Whether the client's requests are for a process that the session no longer has."""
        return self._process not in (None, self.kernel_manager.process)

    def on_kernel_restarted(self) -> None:
        """Notify the client; one that names a process only once, since it connects again for the next."""
        if self._process is None or not self._notified_of_restart:
            super().on_kernel_restarted()  # type: ignore[no-untyped-call]
        self._notified_of_restart = True

    def reconnect(self) -> None:
        """Have the client open another websocket."""
        self.log.warning("a client of kernel %s has to come back", self.kernel_id)
        self.websocket_handler.close()

    def close_for_good(self) -> None:
        """Notify the client that the session is dead, and close."""
        self._send_status_message("dead")
        self._writer.close()

    def disconnect(self) -> None:  # type: ignore[override]
        """Detach; the last client's channels are kept until it comes back."""
        self._closed = True
        self._outputs.detach(self, has_hung_up=not cast("Any", self.websocket_handler).was_closed_here)
        super().disconnect()

    # --- from the client ----------------------------------------------------------------------------------------------

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Pass a message to the session, or answer why it is refused."""
        try:
            channel, header, parts = parse_frame(incoming_msg, self.subprotocol)
            if self._is_outdated:  # the client was notified, and connects again
                self._writer.close()
                return
            if not self.channels:  # closed meanwhile
                return
            is_cell = header.get("msg_type") == "execute_request"
            if sentence := self._why_refused(channel, len(incoming_msg), is_cell=is_cell):
                self._refuse(channel, header, sentence)
                return
            if self._is_plain:
                self.channels[channel].send_multipart(wire.to_frames((), parts, self._signer))
            else:
                super().handle_incoming_message(incoming_msg)  # type: ignore[arg-type]
            if is_cell:
                self.kernel_manager.activity.record_request(header)
        except TooManyBytes as refusal:
            self._refuse(channel, header, str(refusal))
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.log.info("a client of kernel %s sent an invalid message: %r", self.kernel_id, error)
            self.write_stderr(f"The gateway received something that is no Jupyter message and ignored it: {error}", {})

    def _why_refused(self, channel: str, size: int, *, is_cell: bool) -> str | None:
        """Return why a message of *size* bytes has to be refused; None if it can be sent to the session."""
        if size > self.max_message_bytes:
            return (
                f"this message has {format_bytes(size)}; the gateway accepts {format_bytes(self.max_message_bytes)} "
                "(c.SessionWebsocket.max_message_bytes)."
            )
        if is_cell and self.kernel_manager.activity.num_cells >= self.max_queued_cells:
            return (
                f"this session has {self.max_queued_cells} cells to run already; wait for some of them to end "
                "(c.SessionWebsocket.max_queued_cells)."
            )
        unread = self.channels[channel].num_unread_bytes
        if unread and unread + size > self.max_unread_bytes:
            return (
                f"{format_bytes(unread)} wait for this session already, which does not read them now; send this again "
                "when it does (c.SessionWebsocket.max_unread_bytes)."
            )
        return None

    def _refuse(self, channel: str, header: dict[str, Any], sentence: str) -> None:
        """Answer a request with an error, or show why another message is refused."""
        self.log.info("refused a message for kernel %s: %s", self.kernel_id, sentence)
        answers = refusal_answers(channel, str(header.get("msg_type")), sentence)
        for where, message_type, content in answers:
            self._send(where, message_type, content, header)
        if not answers:
            self.write_stderr(sentence, self.kernel_manager.activity.running_cell)

    # --- to the client ------------------------------------------------------------------------------------------------

    def _send(self, channel: str, message_type: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        """Send a message of the gateway's own."""
        message = self.session.msg(message_type, content, parent=parent)
        if self.subprotocol == WEBSOCKET_PROTOCOL:
            self._writer.send([serialize_msg_to_ws_v1(message, channel, self.session.pack)])
        else:
            message["channel"] = channel
            self._writer.send([json.dumps(message, default=json_default).encode()], is_text=True)

    @property
    def _budgets(self) -> UserBudgets:
        return self.websocket_handler.settings["user_budgets"]

    def write_stderr(self, error_message: str, parent_header: dict[str, Any]) -> None:
        """Show a sentence in the notebook."""
        self.write_stream("stderr", error_message, parent_header)

    def write_stream(self, name: str, sentence: str, parent_header: dict[str, Any]) -> None:
        """Show *sentence*, below the cell with this header; *name* is ``"stdout"`` or ``"stderr"``."""
        self._send("iopub", "stream", {"name": name, "text": sentence + "\n"}, parent_header)

    def _send_status_message(self, status: str) -> None:
        kernel = self.kernel_manager
        # For our relay: why the process is gone, and whether somebody wanted that.
        more = {"message": kernel.reason, ATTACHED: kernel.is_attaching, ENDED: kernel.was_ended}
        self._send("iopub", "status", {"execution_state": status, **more}, {})

    def _on_zmq_reply(self, stream: Any, msg_list: Any) -> None:
        if self.subprotocol == WEBSOCKET_PROTOCOL:
            self._writer.send(wire.to_websocket_pieces(stream.channel, msg_list))
            return
        if msg_list["buffers"]:
            msg_list = self._without_buffers(msg_list)
        self._writer.send([self._reserialize_reply(msg_list, channel=stream.channel).encode()], is_text=True)

    def _without_buffers(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return *message* without its binary buffers, which would break the client's channel for good."""
        if not self._notified_of_buffers:
            self._notified_of_buffers = True
            self.write_stderr(
                "This client cannot receive binary data (images of widgets, arrays), so it was left out; "
                "run `sharedkernel install` and choose the kernel it adds instead of `--gateway-url`.",
                message["parent_header"],
            )
        return without_buffers(message)
