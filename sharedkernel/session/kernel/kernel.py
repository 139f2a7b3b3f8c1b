"""The kernel: an ordinary ipykernel whose user code runs in sections of the gate.

A cell is a section. What else may touch the user's objects (widgets' messages, completions, inspections, whatever
other libraries let the kernel handle) is one where it has to be: on a subshell's thread always, elsewhere while memory
is away or about to go. Only :data:`HARMLESS` messages are answered without.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import zmq
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.session import DELIM
from jupyter_client.session import Session as MessageSession
from traitlets import Type
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.ipc import current_session
from sharedkernel.session.channels.backpressure import PacedStream, RequestLimit
from sharedkernel.session.channels.direct_sends import Replies
from sharedkernel.session.channels.message_log import REPLY, REQUEST, MessageLog, message_id
from sharedkernel.session.gate.gate import Gate
from sharedkernel.session.kernel.activity import reap_adopted
from sharedkernel.session.kernel.interrupts import Interrupts
from sharedkernel.session.kernel.shell import SessionShell
from sharedkernel.session.likeness import imported_files, named_as, unaware_of_modules
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.lease_check import ErrorTranslator, LeaseCheck
from sharedkernel.session.memory.reservations import Reservations
from sharedkernel.session.offload.host import RestoreFailed
from sharedkernel.session.progress.loops import LoopReporter
from sharedkernel.session.progress.progress import SourceReader
from sharedkernel.session.wait_display import WaitDisplay
from sharedkernel.units import format_bytes

#: requests that touch no object of the user, or that bring their own section (`execute_request`)
HARMLESS = frozenset({
    "comm_info_request", "connect_request", "create_subshell_request", "debug_request", "delete_subshell_request",
    "execute_request", "history_request", "interrupt_request", "kernel_info_request", "list_subshell_request",
    "shutdown_request", "usage_request",
})  # fmt: skip

Handler = Callable[[Any, Any, dict[str, Any]], Any]

#: what keeps a section from opening, and is told to who asked for it
_NOT_OPENED = (KeyboardInterrupt, torch.OutOfMemoryError, RestoreFailed)

#: frames that each message has: signature, header, parent's header, metadata, content
_FEWEST_FRAMES = 5
#: what JupyterLab says of a button that was clicked
_CLICK = re.compile(rb'"event": ?"click"')
#: seconds between two tries to ask for input a client whose socket for it is not connected, the first and the longest
_STDIN_PAUSE, _LONGEST_STDIN_PAUSE = 0.02, 0.5


@named_as(IPythonKernel)
class GatedKernel(IPythonKernel):
    """An ipykernel behind a gate.

    :mod:`.app` calls :meth:`attach` once the kernel exists, before any message is handled.
    """

    shell_class = Type(SessionShell)
    # given by its application before anything is handled
    session: MessageSession  # type: ignore[assignment]
    shell: SessionShell  # type: ignore[assignment]
    shell_stream: ZMQStream  # type: ignore[assignment]
    control_stream: ZMQStream  # type: ignore[assignment]
    gate: Gate
    #: how much memory the session may have
    lease: LeaseCheck
    #: shows why cells wait
    notice: WaitDisplay
    #: has what gateways may have missed
    message_log: MessageLog
    #: sends what it replies
    replies: Replies
    #: of memory besides tensors; None: on a device where private memory has no limit
    reservations: Reservations | None = None
    #: a sentence; None: the debugger can be used
    why_no_debugger: str | None = None
    #: said before the first cell's own output; None once it was
    greeting: str | None = None
    #: seconds for which a stock kernel sleeps after each cell, lest outputs be overtaken: here flushes wait for them
    _execute_sleep = 0.0

    def __init__(self, **kwargs: Any) -> None:
        self._request_limit = RequestLimit()
        #: who of its main thread they reach
        self.interrupts = Interrupts()
        #: the sender of a message without a reply was notified of its refusal (on the thread that reads the channel)
        self._has_refused = False
        #: the request whose cell the main thread runs, and what keeps its states in order with other threads'
        self._running_cell: dict[str, Any] | None = None
        self._status_lock = threading.RLock()
        #: ids of the cells that were passed on to the main thread and have not ended
        self._cells_ahead: set[str] = set()
        #: the main thread's cell is one with `await`; events of widgets wait for cells of the main thread
        self.awaits = self._events_wait = False
        #: where the message that is being passed on is handled instead of on the main thread
        self._subshell_beside: str | None = None
        with unaware_of_modules():
            super().__init__(**kwargs)
        self._kernel_modules = imported_files
        if getattr(self, "debugger", None) is not None:
            self.debugger.kernel_modules = imported_files

    def attach(self, gate: Gate, translator: ErrorTranslator) -> None:
        """Run all user code behind *gate* from now on, its errors translated by *translator*."""
        self.gate, self.shell.translator = gate, translator
        manager = self.shell_channel_thread.manager
        find = manager.get_shell_channel_to_subshell_socket
        manager.get_shell_channel_to_subshell_socket = lambda subshell: find(subshell or self._subshell_beside)
        # The source as it was written, before anything is put into it.
        self.shell.ast_transformers += [SourceReader(gate.source_read), LoopReporter()]
        for handlers in (self.shell_handlers, self.control_handlers):
            for kind, handler in handlers.items():
                if kind not in HARMLESS:
                    handlers[kind] = self._behind_gate(handler)

    def start(self) -> None:
        """Begin to serve, the main thread's messages one by one even where a cell runs the event loop itself.

        ipykernel handles all in one context, which the cell is in. A loop within it, as with `nest_asyncio`, cannot
        enter that again, and would lose what it receives. Messages about widgets are handled there.
        """
        super().start()
        context, turn = contextvars.copy_context(), asyncio.Lock()

        async def handle(frames: Sequence[zmq.Frame]) -> None:
            is_in_turn = b'"comm_' not in b"".join(frame.bytes for frame in frames[:4])  # up to its header
            async with turn if is_in_turn else contextlib.nullcontext():
                to_enter = context if is_in_turn or not _is_entered(context) else context.copy()
                await asyncio.create_task(self.shell_main(None, frames), context=to_enter)

        pair = self.shell_channel_thread.manager.get_shell_channel_to_subshell_pair(None)
        pair.on_recv(self.io_loop, handle)

    def _input_request(self, *args: Any, **keywords: Any) -> str:
        """Ask the client for a line of text, once its socket for that is connected.

        Clients connect a socket for each channel; a cell that came over one of them may ask before the other is there,
        or while a gateway is away for as long as that may be. ZeroMQ drops what it cannot deliver, and the cell would
        wait for ever.
        """
        pause = _STDIN_PAUSE
        self.stdin_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        while True:
            try:
                return str(super()._input_request(*args, **keywords))
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_STDIN_PAUSE)

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The description of this kernel for clients; they offer no debugger where it cannot be used."""
        information: dict[str, Any] = super().kernel_info
        if self.why_no_debugger is not None:
            features = information["supported_features"]
            information["supported_features"] = [feature for feature in features if feature != "debugger"]
        return information

    async def do_debug_request(self, msg: dict[str, Any]) -> Any:
        """Carry out a request of the debugger, or refuse it."""
        if self.why_no_debugger is None:
            return await super().do_debug_request(msg)
        asked = {"request_seq": msg.get("seq", 0), "command": msg.get("command", "")}
        return {"type": "response", "success": False, "message": self.why_no_debugger, **asked}

    def is_handling_event_beside_cell(self) -> bool:
        """Return whether this thread handles a click while the main thread runs a cell, whose hooks are not for it."""
        parent = self.get_parent().get("header", {})
        return bool(self._running_cell) and bool(parent.get("subshell_id")) and parent.get("msg_type") == "comm_msg"

    def why_busy(self) -> str | None:
        """Return why user code may run although no cell does, as a sentence; None if it cannot."""
        return "It handles a request." if self._main_asyncio_lock.locked() else None

    async def shell_channel_thread_main(self, msg: Any) -> None:
        """Pass a message of the shell channel on to the thread that handles it, or answer that too much waits there."""
        identities, frames = self.session.feed_identities(msg, copy=False)
        try:
            request = self.session.deserialize(frames, content=False, copy=False)
        except (ValueError, TypeError):
            request = None  # said by ipykernel, which does not pass it on
            self._answer_again(identities, frames)
        subshells = self.shell_channel_thread.manager.list_subshell()
        subshell = None if request is None else request["header"].get("subshell_id")
        is_passed_on = request is not None and (subshell is None or subshell in subshells)
        if identities:
            self.message_log.meet(bytes(identities[0]))
        if request is None or not is_passed_on or self._request_limit.add(msg, subshell, subshells):
            self._has_refused = False
            if request is not None and is_passed_on:
                self._subshell_beside = self._choose_subshell(request, subshell)
            await super().shell_channel_thread_main(msg)
            self._subshell_beside = None
        else:
            self._refuse(identities, request)

    def _choose_subshell(self, request: dict[str, Any], subshell: str | None) -> str | None:
        """Return where a message is handled beside the main thread's cells: for a click, the *subshell* that it names.

        ipykernel passes it on to where its widget was used last. That is the main thread for most, so a button to stop
        a cell would be dead. Other events wait for the cells, and clicks behind them, to stay in order: their handlers
        may draw, and pyplot is not made for two threads. An asynchronous cell handles events by itself.
        """
        kind = request["header"]["msg_type"]
        is_held_up = bool(self._cells_ahead) and not self.awaits
        self._events_wait &= is_held_up
        if kind == "execute_request" and subshell is None:
            self._cells_ahead.add(str(request["header"]["msg_id"]))
        if not is_held_up or kind not in ("comm_msg", "comm_close"):
            return None
        self._events_wait |= _CLICK.search(request["content"]) is None
        return None if self._events_wait else subshell

    def _answer_again(self, identities: Sequence[Any], frames: Sequence[Any]) -> None:
        """Send the reply to a request that comes once more; nothing if it has none yet.

        A relay repeats what it has no reply to when its gateway is back. A reply that this session sent before it had
        seen the new gateway's connection went to the one that is gone.
        """
        if not identities or len(frames) < _FEWEST_FRAMES:
            return
        if bytes(frames[0]) not in self.session.digest_history:  # nobody asks for what others were answered
            return
        request_id = message_id([DELIM, *map(bytes, frames[:2])])
        if request_id is not None and (reply := self.message_log.reply_to(request_id, bytes(identities[0]))):
            ZMQStream.send_multipart(self.shell_stream, reply)  # past the log, which has it

    def _refuse(self, identities: Any, request: dict[str, Any]) -> None:
        """Answer a request that too much waits already; what has no answer is told of once, until there is room."""
        kind, _, suffix = request["header"]["msg_type"].rpartition("_")
        sentence = (
            f"this session is busy, and {format_bytes(self._request_limit.limit_bytes)} of messages wait for it "
            "already; send this one again when its cells have ended, or interrupt them."
        )
        error = {"ename": "MessageRefused", "evalue": sentence, "traceback": [f"MessageRefused: {sentence}"]}
        self._publish_status("busy", "shell", parent=request)
        if suffix == "request":
            if kind == "execute":
                self._publish(request, "error", error)
            self.session.send(
                self.shell_stream, f"{kind}_reply", {"status": "error", **error}, request, ident=identities
            )
        elif not self._has_refused:
            self._publish(request, "stream", {"name": "stderr", "text": f"{sentence}\n"})
            self._has_refused = True
        self._publish_status("idle", "shell", parent=request)

    def show_sentence(self, text: str) -> None:
        """Show what the executor has to say to the user, below the cell that runs or ran last (any thread)."""
        self._publish(self.get_parent("shell"), "stream", {"name": "stderr", "text": f"⚠ {text}\n"})

    def _publish(self, request: dict[str, Any], kind: str, content: dict[str, Any]) -> None:
        self.session.send(self.iopub_socket, kind, content, request, ident=self._topic(kind))

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        """Publish a state; once a request that was handled beside a cell has ended, say again that the cell runs.

        A page shows the last state that it was sent. A widget's message on a subshell ends as idle, and so does a
        question on the control channel.
        """
        parent = parent or self.get_parent(channel)
        with self._status_lock:
            header = (parent or {}).get("header", {})
            is_cell = header.get("msg_type") == "execute_request"
            if is_cell and status == "busy" and threading.current_thread() is threading.main_thread():
                self._running_cell = self._running_cell or parent
            cell = self._running_cell
            if cell is not None and status == "idle" and cell["header"]["msg_id"] == header.get("msg_id"):
                cell = self._running_cell = None
            if status == "idle":
                self._cells_ahead.discard(str(header.get("msg_id")))
            super()._publish_status(status, channel, parent)
            if cell is not None and status == "idle":
                super()._publish_status("busy", "shell", cell)

    async def dispatch_shell(self, msg: Any, /, subshell_id: str | None = None, *, concurrent: bool = False) -> None:
        """Handle a message of the shell channel; operations on a subshell's thread pass the gate from now on."""
        if subshell_id is None:
            current_session.wait_for_place()
        self._request_limit.take(msg)
        self.gate.guard_thread()
        # From before its client hears that it runs: that may interrupt it at once.
        if not concurrent:
            self.interrupts.begin()
        try:
            await super().dispatch_shell(msg, subshell_id=subshell_id, concurrent=concurrent)
        finally:
            if not concurrent:
                self.interrupts.end()
            if subshell_id is not None:
                self.io_loop.add_callback(time.time)  # wakes it, should one of its futures have been resolved here

    async def dispatch_control(self, msg: Any) -> None:
        """Handle a message of the control channel; what a gateway asks is nobody else's business, and not published."""
        identities, frames = self.session.feed_identities(msg, copy=False)
        try:
            request = self.session.deserialize(frames, content=False, copy=False)
        except (ValueError, TypeError):
            request = {}  # said below, and in full
        if request.get("msg_type") != REQUEST:
            await super().dispatch_control(msg)
            return
        request = self.session.deserialize(frames, copy=False)
        asked = request["content"]
        missed = self.message_log.since(
            asked["seen"],
            asked["identity"].encode(),
            resumes=asked["resumes"],
            successor=asked.get("successor", "").encode(),
        )
        content = {
            "status": "ok",
            "is_cut": missed.is_cut,
            "messages": [[channel, [len(frame) for frame in frames]] for channel, frames in missed.messages],
        }
        data = b"".join(frame for _, frames in missed.messages for frame in frames)
        reply = self.session.serialize(self.session.msg(REPLY, content, parent=request), ident=identities)
        # Past the outbox: what it gives out need not be kept once more.
        ZMQStream.send_multipart(self.control_stream, [*reply, data])

    def pre_handler_hook(self) -> None:
        """Do nothing, in place of ipykernel's, which has interrupts raised anywhere; see :meth:`dispatch_shell`."""

    def post_handler_hook(self) -> None:
        """Do nothing."""

    def _behind_gate(self, handler: Handler) -> Handler:
        """Return *handler*, run in a section where that is needed, and open to interrupts."""

        async def handle(stream: Any, identities: Any, request: dict[str, Any]) -> None:
            try:
                with self.interrupts.let_through():
                    await handle_in_section(stream, identities, request)
            except KeyboardInterrupt as error:
                self.interrupts.hold()
                self._reply_failed(stream, identities, request, error)

        async def handle_in_section(stream: Any, identities: Any, request: dict[str, Any]) -> None:
            with contextlib.ExitStack() as section:
                # The main thread's operations outside cells open a section of their own.
                if self.gate.sections.is_needed or threading.current_thread() is not threading.main_thread():
                    try:
                        section.enter_context(self.gate.sections.open())
                    except _NOT_OPENED as error:
                        self._reply_failed(stream, identities, request, error)
                        return
                result = handler(stream, identities, request)
                if inspect.isawaitable(result):
                    await result

        return handle

    def _reply_failed(self, stream: Any, identities: Any, request: dict[str, Any], error: BaseException) -> None:
        kind, _, suffix = request["header"]["msg_type"].rpartition("_")
        if suffix == "request":
            content = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
            self.session.send(stream, f"{kind}_reply", content, request, ident=identities)

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> Any:
        """Run a cell; wherever an interrupt comes, there is a reply."""
        try:
            with contextlib.nullcontext() if silent else self.notice.cell():
                reply = await self._execute_in_section(code, silent, *args, **kwargs)
        except _NOT_OPENED as error:
            self.interrupts.hold()
            reply = self._fail({"execution_count": self.execution_count, "payload": []}, error)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, PacedStream):
                stream.drain()
        if threading.current_thread() is threading.main_thread():
            self.replies.are_direct = reply["status"] == "ok"
            self.awaits = False
        return reply

    async def _execute_in_section(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self.greeting is not None and not silent:
            self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": self.greeting + "\n"})
            self.greeting = None
        section = contextlib.ExitStack()
        with self.interrupts.let_through():
            section.enter_context(self.gate.sections.open())
        self._renew_limit()
        used_before = self.gate.used_bytes
        self.shell.transformed = None
        try:
            reply: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
            excess = self._excess(used_before) if reply["status"] == "ok" else None
        finally:
            section.close()
            reap_adopted()
            self._renew_limit()
        return reply if excess is None else self._fail(reply, excess)

    def _renew_limit(self) -> None:
        if self.reservations is not None:
            self.reservations.renew()

    def _excess(self, used_before: int) -> BaseException | None:
        """Return an error if the cell leaves too much, also without what nobody needs: that goes with its section."""
        if self.lease.excess(used_before, self.gate.used_bytes) is None:
            return None
        reclaimable.free()
        return self.lease.excess(used_before, self.gate.used_bytes)

    def _fail(self, reply: dict[str, Any], error: BaseException) -> dict[str, Any]:
        """Show *error* as a cell's, raised by none of its lines; return *reply* as that of a cell that failed."""
        shell = self.shell
        shell._showtraceback(type(error), error, shell.InteractiveTB.get_exception_only(type(error), error))
        return {
            **reply,
            "status": "error",
            "ename": type(error).__name__,
            "evalue": str(error),
            "traceback": shell._last_traceback or [],
            "user_expressions": {},
        }


def _is_entered(context: contextvars.Context) -> bool:
    try:
        context.run(int)
    except RuntimeError:
        return True
    return False
