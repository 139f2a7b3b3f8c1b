"""What a session's published messages say about it: busy or idle, since when, and which cell runs. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from itertools import chain
from typing import Any

from sharedkernel.errors import ProtocolError
from sharedkernel.relay.wire import read_object

#: cells remembered that were sent and have not ended
_MAX_ASKED = 10_000
#: requests remembered that are being worked on, and the longest header, in bytes, of one that is: sessions can name any
_MAX_RUNNING = 1000
_MAX_HEADER = 16 * 1024


class Activity:
    """Follows one session.

    Parameters
    ----------
    is_tracked
        Whether a message of this type counts as somebody's activity (kernel_info_request does not).
    """

    def __init__(self, is_tracked: Callable[[str], bool]) -> None:
        self._is_tracked = is_tracked
        #: when somebody last did something with the session
        self.last = datetime.datetime.now(datetime.UTC)
        #: headers of the requests being worked on, by message id; several at a time with subshells and comms
        self._running: dict[str, dict[str, Any]] = {}
        #: headers of the cells that clients sent and that have not ended, by message id, oldest first
        self._asked: dict[str, dict[str, Any]] = {}
        self._busy_elsewhere = False

    @property
    def state(self) -> str:
        """``busy`` or ``idle``, as Jupyter's API has it."""
        return "busy" if self._running or self._busy_elsewhere else "idle"

    @property
    def running_cell(self) -> dict[str, Any]:
        """The header of the cell that runs now, else of the next one, else of any request worked on, else empty.

        A process can die of a cell before it says that it has begun it.
        """
        cells = (header for header in self._running.values() if header.get("msg_type") == "execute_request")
        return next(chain(cells, self._asked.values(), self._running.values()), {})

    @property
    def num_cells(self) -> int:
        """How many cells were sent that have not ended."""
        return len(self._asked)

    def has_ended(self, cell: dict[str, Any]) -> bool:
        """Whether nothing is left to hear of the cell with this header: not its beginning, and not its end."""
        message_id = str(cell.get("msg_id"))
        return message_id not in self._running and message_id not in self._asked

    def ask(self, header: dict[str, Any]) -> None:
        """Take note that a client has sent a cell."""
        self._asked[str(header.get("msg_id"))] = header
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def start(self, *, busy: bool = False) -> None:
        """Forget what ran: the session is another process now, or was found by a gateway (*busy*: in a cell)."""
        self._running.clear()
        self._asked.clear()
        self._busy_elsewhere = busy
        self.last = datetime.datetime.now(datetime.UTC)

    def rest(self) -> None:
        """Take note that no cell runs that was begun unheard."""
        self._busy_elsewhere = False

    def hear(self, parts: list[bytes]) -> str:
        """Take note of a message's parts (from the header on) and return its type.

        Raises
        ------
        ProtocolError
            When they are no message.
        """
        if len(parts) < 4:
            raise ProtocolError("a message with too few parts.")
        message_type = str(read_object(parts[0]).get("msg_type"))
        parent = read_object(parts[1])
        tracked = self._is_tracked(str(parent.get("msg_type")))
        if message_type == "status" and tracked:
            is_short = len(parts[1]) <= _MAX_HEADER
            self._hear_status(str(read_object(parts[3]).get("execution_state")), parent, keep=is_short)
        if tracked or self._is_tracked(message_type) or self.state == "busy":
            self.last = datetime.datetime.now(datetime.UTC)
        return message_type

    def _hear_status(self, state: str, parent: dict[str, Any], *, keep: bool) -> None:
        message_id = str(parent.get("msg_id"))
        if state == "busy":
            if keep:
                self._running[message_id] = parent
            if len(self._running) > _MAX_RUNNING:
                del self._running[next(iter(self._running))]
            if parent.get("msg_type") == "execute_request" and not parent.get("subshell_id"):
                self.rest()  # cells run one at a time: the one before has ended, should nobody have heard of that
        elif state == "idle":
            self._asked.pop(message_id, None)
            if self._running.pop(message_id, None) is None:
                self.rest()  # the end of what a gateway found running: its beginning was not heard
