"""What an executor says to its warm parent and its keeper, and what these say to it (packets)."""

from __future__ import annotations

from sharedkernel.protocol.common import Message

# --- executor <-> warm parent -----------------------------------


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
    """Fork no more, and end with the last session, once its ending is taken note of (warm parent)."""


class Quit(Message, frozen=True, kw_only=True):
    """End (warm parent, keeper)."""


# --- executor <-> keeper -----------------------------------


class Put(Message, frozen=True, kw_only=True):
    """Keep `data` and the descriptors that travel with it under `key`, instead of what was there."""

    key: str
    data: bytes


class Delete(Message, frozen=True, kw_only=True):
    """Forget `key`."""

    key: str


class GetAll(Message, frozen=True, kw_only=True):
    """Ask for everything; answered by one :class:`Kept` each (with descriptors) and :class:`KeptAll`."""


class Kept(Message, frozen=True, kw_only=True):
    """One thing kept; its descriptors travel with it."""

    key: str
    data: bytes


class KeptAll(Message, frozen=True, kw_only=True):
    """There is no more."""


ToWarmParent = Fork | ExitedSeen | Retire | Quit
FromWarmParent = Forked | NotForked | Exited
ToKeeper = Put | Delete | GetAll | Quit
FromKeeper = Kept | KeptAll
