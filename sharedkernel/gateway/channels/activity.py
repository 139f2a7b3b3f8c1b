"""A session's activity, from its published messages alone: busy or idle, since when, and which cell runs. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec

from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter.wire import read_object

#: most cells remembered that were sent and have not ended
_MAX_REQUESTED = 10_000
#: most requests remembered that are in progress, and the longest header of one, in bytes: sessions can name any
_MAX_RUNNING = 1000
_MAX_HEADER = 16 * 1024


class _Header(msgspec.Struct):
    """The part of a message's header that is read."""

    msg_type: str = ""


#: checks that a header is valid, and reads no more of it
_read_header = msgspec.json.Decoder(_Header).decode


class KernelActivity:
    """The activity of one session.

    Parameters
    ----------
    is_tracked
        Whether a message of this type counts as activity (kernel_info_request does not).
    """

    def __init__(self, is_tracked: Callable[[str], bool]) -> None:
        self._is_tracked = is_tracked
        #: time of the last activity
        self.last = datetime.datetime.now(datetime.UTC)
        #: headers of the requests in progress, by message id; several at a time with subshells and comms
        self._running: dict[str, dict[str, Any]] = {}
        #: headers of the cells that clients sent and that have not ended, by message id, oldest first
        self._requested: dict[str, dict[str, Any]] = {}
        #: whether a cell runs that began before this gateway listened
        self._busy_before = False
        #: the last parent header, as bytes, parsed, and whether it is tracked: all outputs of a cell have the same
        self._parent: tuple[bytes, dict[str, Any], bool] = (b"", {}, True)

    @property
    def state(self) -> str:
        """``busy`` or ``idle``, as in Jupyter's API."""
        return "busy" if self._running or self._busy_before else "idle"

    @property
    def running_cell(self) -> dict[str, Any]:
        """The header of the running cell, else of the next cell, else of any request in progress, else empty.

        A process can die of a cell before it reports that the cell has begun.
        """
        cells = (header for header in self._running.values() if header.get("msg_type") == "execute_request")
        return next(chain(cells, self._requested.values(), self._running.values()), {})

    @property
    def num_cells(self) -> int:
        """Number of cells that were sent and have not ended."""
        return len(self._requested)

    def has_ended(self, cell: dict[str, Any]) -> bool:
        """Whether the cell with this header is neither running nor waiting."""
        message_id = str(cell.get("msg_id"))
        return message_id not in self._running and message_id not in self._requested

    def record_request(self, header: dict[str, Any]) -> None:
        """Record that a client has sent the cell with this header."""
        self._requested[str(header.get("msg_id"))] = header
        if len(self._requested) > _MAX_REQUESTED:
            del self._requested[next(iter(self._requested))]

    def reset(self, *, busy: bool = False) -> None:
        """Forget all requests: the session has another process now, or was found running (*busy*: in a cell)."""
        self._running.clear()
        self._requested.clear()
        self._busy_before = busy
        self.last = datetime.datetime.now(datetime.UTC)

    def mark_idle(self) -> None:
        """Record that no cell runs that began before this gateway listened."""
        self._busy_before = False

    def record_message(self, parts: list[bytes]) -> str:
        """Record a published message, by its parts from the header on, and return its type.

        Raises
        ------
        ProtocolError
            When the parts are no valid message.
        """
        if len(parts) < 4:
            raise ProtocolError("a message with too few parts.")
        try:
            message_type = _read_header(parts[0]).msg_type
        except msgspec.MsgspecError:
            raise ProtocolError("a message without a valid header.") from None
        if parts[1] != self._parent[0]:
            parsed = read_object(parts[1])
            self._parent = parts[1], parsed, self._is_tracked(str(parsed.get("msg_type")))
        _, parent, tracked = self._parent
        if message_type == "status" and tracked:
            is_short = len(parts[1]) <= _MAX_HEADER
            self._record_status(str(read_object(parts[3]).get("execution_state")), parent, keep=is_short)
        if tracked or self._is_tracked(message_type) or self.state == "busy":
            self.last = datetime.datetime.now(datetime.UTC)
        return message_type

    def _record_status(self, state: str, parent: dict[str, Any], *, keep: bool) -> None:
        message_id = str(parent.get("msg_id"))
        if state == "busy":
            if keep:
                self._running[message_id] = parent
            if len(self._running) > _MAX_RUNNING:
                del self._running[next(iter(self._running))]
            if parent.get("msg_type") == "execute_request" and not parent.get("subshell_id"):
                self.mark_idle()  # cells run one at a time, so the one before has ended, even if its end was missed
        elif state == "idle":
            self._requested.pop(message_id, None)
            if self._running.pop(message_id, None) is None:
                self.mark_idle()  # the end of a cell that began before this gateway listened
