"""Messages between an executor and its warm parent (packets)."""

from __future__ import annotations

from sharedkernel.protocol.common import Message


class Fork(Message, frozen=True, kw_only=True):
    """Fork a session process; the shared page's descriptor travels with it.

    Answered by :class:`Forked` or :class:`NotForked`.
    """

    process: str
    connection_file: str
    log_file: str
    #: kind of the device that it will use
    device_kind: str = "host"
    #: how it has memory on a GPU, as `device_memory/mode.py` has it
    memory_mode: str = "shared"
    #: how users are kept apart (see `executor/isolation/policy.py`)
    isolation: str = "none"


class Forked(Message, frozen=True, kw_only=True):
    """A session process exists."""

    process: str
    pid: int


class NotForked(Message, frozen=True, kw_only=True):
    """The system refused another process, and why."""

    process: str
    why: str


class Exited(Message, frozen=True, kw_only=True):
    """A session process was reaped; `status` as waitpid gives it. Repeated to a new executor until acknowledged."""

    process: str
    pid: int
    status: int


class ExitedSeen(Message, frozen=True, kw_only=True):
    """The executor has taken note of :class:`Exited`."""

    process: str


class Retire(Message, frozen=True, kw_only=True):
    """Fork no more, and end with the last session, once its ending is taken note of."""


class Quit(Message, frozen=True, kw_only=True):
    """End."""


ToWarmParent = Fork | ExitedSeen | Retire | Quit
FromWarmParent = Forked | NotForked | Exited
