"""Messages in packets, with which descriptors travel.

A session and its executor speak of the shelf, lanes and units on the descriptor socket, an executor and its warm parent
of processes.
"""

from __future__ import annotations

from sharedkernel.protocol.common import Done, Failed, Message, Numbered, ShelfEntry

# --- session -> executor on the descriptor socket (packets) -----------------------------------


class ReserveShelf(Numbered, frozen=True, kw_only=True):
    """Ask for a file of `bytes`, to write what is about to be shelved as `name`; answered by :class:`ShelfReserved`.

    It is charged to the user for as long as a process has it open.
    """

    name: str
    bytes: int


class Shelve(Numbered, frozen=True, kw_only=True):
    """Put what was reserved as `number`, and is written, on the user's shelf, instead of what had its name.

    Answered by :class:`Done`, also if it is there already.
    """

    number: int


class FetchShelved(Numbered, frozen=True, kw_only=True):
    """Ask for the file that is on the shelf under `name`; answered by :class:`Shelved`."""

    name: str


class Unshelve(Numbered, frozen=True, kw_only=True):
    """Take `name` off the shelf; answered by :class:`Done`."""

    name: str


class ListShelf(Numbered, frozen=True, kw_only=True):
    """Ask what is on the shelf; answered by :class:`ShelfListing`."""


class TakeLane(Numbered, frozen=True, kw_only=True):
    """With a grant: ask what the session's lane is made of, and begin its turn; answered by :class:`LaneTaken`."""


class FetchUnits(Numbered, frozen=True, kw_only=True):
    """Ask for units of the session's lane; answered by :class:`Units`."""

    units: list[int]


class WantPrivateUnits(Numbered, frozen=True, kw_only=True):
    """Ask for device memory of the session's own, in units of these sizes; answered by :class:`Units`."""

    sizes: list[int]


class KeepUnits(Numbered, frozen=True, kw_only=True):
    """Make units of the lane in which the session has its turn private to it; answered by :class:`Done`.

    On a device that is full: what lives there could not be copied out. The lane has no units then.
    """

    units: list[int]


class LaneHandedOver(Numbered, frozen=True, kw_only=True):
    """Nothing of the session's iteration is left in its lane; said before the grant goes. Answered by :class:`Done`."""

    #: the turn came to nothing: what was in the lane is still there
    unused: bool = False


class LaneUnused(Numbered, frozen=True, kw_only=True):
    """Why the session's iterations use no lane that others share, in one sentence; answered by :class:`Done`."""

    #: None: they do
    note: str | None


class UnitsImported(Numbered, frozen=True, kw_only=True):
    """The session has these private units: they live and die with its process now; answered by :class:`Done`."""

    units: list[int]


class UnitsLetGo(Numbered, frozen=True, kw_only=True):
    """Nothing of these units is left in the session's process; answered by :class:`Done`."""

    units: list[int]


# --- executor -> session on the descriptor socket (packets) -----------------------------------


class LaneTaken(Numbered, frozen=True, kw_only=True):
    """The session's lane: its units by number and size, in the order of their addresses. Their sum is its size."""

    units: list[tuple[int, int]]
    #: another user's bytes are in it, and are to be written over before anything is read
    must_scrub: bool


class Units(Numbered, frozen=True, kw_only=True):
    """Device memory by number and size; a descriptor of each travels along, in this order."""

    units: list[tuple[int, int]]


class DescriptorWelcome(Message, frozen=True, kw_only=True):
    """First packet on a connection, unless it is a :class:`Failed` of request 0; nothing is said before it."""

    version: int


class ShelfReserved(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`ReserveShelf`; the file's descriptor travels along."""

    number: int


class Shelved(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`FetchShelved`; the file's descriptor travels along."""


class ShelfListing(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`ListShelf`, in the order of names."""

    entries: list[ShelfEntry]
    #: what the shelf is charged with: the entries, and what was taken off it but is still mapped by a session
    charged_bytes: int
    #: what could be shelved besides
    left_bytes: int


ToDescriptorSocket = (
    ReserveShelf | Shelve | FetchShelved | Unshelve | ListShelf | TakeLane | FetchUnits
    | LaneHandedOver | LaneUnused | WantPrivateUnits | UnitsImported | UnitsLetGo | KeepUnits
)  # fmt: skip
FromDescriptorSocket = DescriptorWelcome | Done | Failed | ShelfReserved | Shelved | ShelfListing | LaneTaken | Units


# --- between an executor and its warm parent --------------------------------------------------------------------------


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
