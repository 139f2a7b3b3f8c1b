"""Answers the client while no session does: the gateway refused, cannot be reached, or lost the outcome.

A kernel that stays silent hangs every client there is, each in its own way; one that answers with a readable error
leaves them all usable. So each request gets a reply of the right type and each cell its error, and a cell that runs
while the gateway is away says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sharedkernel.client.relay.problems import Problem
from sharedkernel.client.relay.sockets import ClientSockets
from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter import wire

#: seconds of an outage before a running cell is told of it
OUTAGE_PATIENCE = 3.0


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A message to the session; mostly a client's request that has no reply yet."""

    channel: str
    #: where the reply goes
    identities: list[bytes] = field(default_factory=list)
    message_type: str
    #: the message as it was encoded, from its header on
    parts: list[bytes]
    #: whether a client waits for its reply; there is none to a widget's message, nor to one of our own
    wants_reply: bool = False
    #: whether it waits for its turn in the session's main shell, so that later requests there are answered after it
    in_line: bool = False
    #: whether it was handed to the gateway
    sent: bool = False
    #: whether the session has said that it handles it
    has_begun: bool = False

    @property
    def header(self) -> bytes:
        """Its header."""
        return self.parts[0]

    @property
    def content(self) -> bytes:
        """Its content."""
        return self.parts[3]

    @property
    def is_cell(self) -> bool:
        """Whether it asks to run code."""
        return self.message_type == "execute_request"


class LocalResponder:
    """Speaks to the client in the session's place.

    Parameters
    ----------
    client
        Where it listens.
    session
        Id under which this object speaks.
    """

    def __init__(self, client: ClientSockets, session: str) -> None:
        self._client = client
        self._session = session

    def answer(self, requests: Iterable[Request], problem: Problem) -> None:
        """Answer requests in their order: the first cell shows the problem, those behind it are aborted.

        So it is when a cell fails in any kernel; a notebook that runs as a whole says what is wrong once.

        Parameters
        ----------
        requests
            Without a reply until now.
        problem
            Why they were not carried out.
        """
        failed = False
        for request in requests:
            if request.is_cell and failed:
                self._answer_at_once(request, {"status": "aborted"})
            elif request.is_cell:
                failed = self._fail(request, problem)
            else:
                self._answer_at_once(request, _answer(request, problem))

    def reply(self, request: Request, content: dict[str, Any]) -> None:
        """Send the reply to *request*."""
        message_type = request.message_type.removesuffix("_request") + "_reply"
        parts = wire.new_message(message_type, content, session=self._session, parent=request.header)
        self._client.send(request.channel, request.identities, parts)

    def publish(self, message_type: str, content: dict[str, Any], parent: bytes = b"{}") -> None:
        """Publish a message on iopub.

        Parameters
        ----------
        message_type, content
            Of the message.
        parent
            Header of the request that it belongs to, in JSON.
        """
        self._client.publish(wire.new_message(message_type, content, session=self._session, parent=parent))

    def say(self, text: str, parent: bytes = b"{}") -> None:
        """Show *text* in the output of the cell whose request has the header *parent*."""
        self.publish("stream", {"name": "stderr", "text": text + "\n"}, parent)

    def _answer_at_once(self, request: Request, content: dict[str, Any]) -> None:
        # Without busy and idle around it a client may take the kernel for not ready yet.
        self.publish("status", {"execution_state": "busy"}, request.header)
        self.reply(request, content)
        self.publish("status", {"execution_state": "idle"}, request.header)

    def _fail(self, request: Request, problem: Problem) -> bool:
        """Show the problem in the cell; return whether the cells behind it are to be aborted."""
        cell: dict[str, Any] = {}
        with contextlib.suppress(ProtocolError):
            cell = wire.read_object(request.content)
        silent = bool(cell.get("silent"))
        if not request.sent:
            self.publish("status", {"execution_state": "busy"}, request.header)
            if not silent:
                self.publish("execute_input", {"code": cell.get("code", ""), "execution_count": 0}, request.header)
        error = _error(problem)
        if not silent:
            self.publish("error", {key: error[key] for key in ("ename", "evalue", "traceback")}, request.header)
        self.reply(request, error | {"execution_count": 0, "user_expressions": {}, "payload": []})
        self.publish("status", {"execution_state": "idle"}, request.header)
        return bool(cell.get("stop_on_error", True)) and not silent


def _answer(request: Request, problem: Problem) -> dict[str, Any]:
    """Return the content of the reply to what is no cell: what a client can go on with, if there is such a thing."""
    answers: dict[str, dict[str, Any]] = {
        "kernel_info_request": _kernel_info(problem),
        "comm_info_request": {"status": "ok", "comms": {}},
        "history_request": {"status": "ok", "history": []},
        "is_complete_request": {"status": "unknown"},
        "interrupt_request": {"status": "ok"},
    }
    return answers.get(request.message_type, _error(problem))


def _error(problem: Problem) -> dict[str, Any]:
    return {
        "status": "error",
        "ename": problem.name,
        "evalue": problem.sentence,
        # red, as IPython prints an exception's name
        "traceback": [f"\x1b[0;31m{problem.name}\x1b[0m: {problem.sentence}"],
    }


def _kernel_info(problem: Problem) -> dict[str, Any]:
    """Return what makes a client ready: like a session's own answer, with the problem as its banner."""
    return {
        "status": "ok",
        "protocol_version": wire.MESSAGING_VERSION,
        "implementation": "sharedkernel",
        "implementation_version": "",
        "language_info": {
            "name": "python",
            "version": platform.python_version(),
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
        "banner": f"{problem.name}: {problem.sentence}",
        "help_links": [],
    }


class Outage:
    """Tells of the outages of one connection; needs a running event loop.

    Parameters
    ----------
    responder
        Says it in the notebook.
    running_cell
        Returns the header of the cell to tell; None if there is none.
    """

    def __init__(self, responder: LocalResponder, running_cell: Callable[[], bytes | None]) -> None:
        self._responder = responder
        self._running_cell = running_cell
        self._loop = asyncio.get_running_loop()
        self._began_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: the cell that was told, and wants to know of the end
        self._told: bytes | None = None

    def begin(self, url: str) -> None:
        """Record that the gateway at *url* cannot be reached."""
        self._began_at = self._loop.time()
        self._timer = self._loop.call_later(OUTAGE_PATIENCE, self._tell, url)

    def end(self) -> None:
        """Say that it is back, to the cell that was told."""
        told = self._told
        self.forget()
        if told is not None:
            away = self._loop.time() - self._began_at
            self._responder.say(f"[Shared GPU] the gateway is back after {away:.0f} s.", told)

    def forget(self) -> None:
        """Say nothing more of this outage."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._told = None

    def _tell(self, url: str) -> None:
        self._timer = self._loop.call_later(OUTAGE_PATIENCE, self._tell, url)  # what is run meanwhile is told, too
        cell = self._running_cell()
        if cell is not None and cell != self._told:
            self._told = cell
            self._responder.say(
                f"[Shared GPU] the gateway at {url} is away; the session goes on there, and this notebook "
                "waits for it.",
                cell,
            )
