"""The status document: who uses and who waits for which resources of a device, or of several.

The executor builds it (`executor/control/status_builder.py`), the gateway merges those of several executors
(`gateway/fleet/merged_status.py`), commands, widgets and JupyterLab's pages show it. The names and values in its JSON
are a contract: fields are added, never changed. `labextension/src/statusdocument.ts` reads it for the pages.

A document may come from an older or a newer version. Unknown fields are ignored, and missing ones have their defaults;
:func:`read_status` refuses anything else with one sentence. A field that is ``UNSET`` is absent from the JSON.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from sharedkernel.errors import ConfigError, ProtocolError
from sharedkernel.status.timeline import DeviceTimeline

Part = TypeVar("Part", bound=msgspec.Struct)


class HostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of several hosts."""

    name: str
    #: whether it answers (None: nobody was asked), and why not
    answering: bool | None = None
    message: str | None = None
    #: None: not known, as all below
    version: str | None = None
    num_devices: int = 0
    num_sessions: int | None = None
    #: whether it starts no new sessions, and nobody has anything there any more
    cordoned: bool | None = None
    drained: bool | None = None
    #: whether its agent is in touch with a Ray cluster, and found its services running rather than starting them
    in_ray: bool | None = None
    adopted: bool | None = None

    def state_words(self) -> str:
        """Return whether it answers, and how far it is drained."""
        answers = {True: "answers", False: "away", None: "-"}[self.answering]
        if self.drained:
            return f"{answers}, drained"
        return f"{answers}, draining" if self.cordoned else answers

    def ray_words(self) -> str:
        """Return whether it is in Ray, and whether its agent started its services or adopted them."""
        if self.in_ray is None:
            return "-"
        how = {True: ", adopted", False: ", started", None: ""}[self.adopted]
        return f"{'in Ray' if self.in_ray else 'not in Ray'}{how}"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a large cluster that a document leaves out."""

    hosts: int = 0
    devices: int = 0
    lanes: int = 0
    sessions: int = 0
    users: int = 0

    def sentence(self, how: str = "`--about NAME`") -> str:
        """Return what is not shown, and *how* to see it."""
        counts = [f"{getattr(self, name):,} {name}" for name in self.__struct_fields__ if getattr(self, name)]
        return f"Not shown: {', '.join(counts)}. {how} shows those of a host, a device, a user or a notebook."


class DeviceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that are known of some devices only."""

    #: the executor's name for the device, where `name` is the configuration's
    description: str | UnsetType | None = UNSET
    #: whether sessions share the bytes of a lane, and why (not)
    lanes_shared: bool | UnsetType = UNSET
    lanes_shared_reason: str | UnsetType = UNSET
    #: what the policy does, in one sentence, and how waits can be foreseen: by "turns" or by the "ends" of cells
    policy_summary: str | UnsetType = UNSET
    waits_foreseen_by: str | UnsetType | None = UNSET
    #: how users are kept apart, and a sentence about it
    isolation: str | UnsetType = UNSET
    isolation_note: str | UnsetType = UNSET
    #: of a GPU, as all below
    uuid: str | UnsetType = UNSET
    driver_version: str | UnsetType | None = UNSET
    memory_mode: str | UnsetType = UNSET
    self_test: str | UnsetType | None = UNSET
    shared_units_bytes: int | UnsetType = UNSET
    mps: str | UnsetType = UNSET
    mps_note: str | UnsetType | None = UNSET
    #: part of NVML's last sample period in which a CUDA kernel ran, 0 to 1; None where the GPU does not say, as below
    utilisation: float | UnsetType | None = UNSET
    temperature_celsius: float | UnsetType | None = UNSET
    power_watts: float | UnsetType | None = UNSET
    power_limit_watts: float | UnsetType | None = UNSET
    physical_used_bytes: int | UnsetType | None = UNSET
    nvml: str | UnsetType = UNSET
    nvml_note: str | UnsetType | None = UNSET


class DeviceStatus(DeviceDetails, frozen=True, kw_only=True):
    """A device, or the sum of several."""

    name: str
    kind: str = ""
    capacity_bytes: int = 0
    reserve_bytes: int = 0
    #: memory between iterations and what is live of them, of all sessions, and all shelves
    used_bytes: int = 0
    policy: str = ""
    quantum_seconds: float = 0.0


class DeviceEntry(DeviceDetails, frozen=True, kw_only=True):
    """One of several devices; most of it is None while its executor does not answer."""

    #: in the configuration
    name: str
    kind: str | None = None
    capacity_bytes: int | None = None
    reserve_bytes: int | None = None
    used_bytes: int | None = None
    policy: str | None = None
    quantum_seconds: float | None = None
    #: whether its executor answers, and why not
    available: bool = True
    message: str | None = None
    num_sessions: int = 0
    #: name of its host; of several hosts only
    host: str | UnsetType = UNSET

    def status(self) -> DeviceStatus:
        """Return the same of a device whose executor answers."""
        known = {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}
        return msgspec.convert(known, DeviceStatus)


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lane."""

    #: unique over all devices of the document
    id: int
    size_bytes: int = 0
    #: id of the session that holds a grant in it
    holder: str | None = None
    #: ids of the sessions that want one, next first
    queue: list[str] = []
    #: id at its own executor, and name of its device; of several devices only
    number: int | UnsetType = UNSET
    device: str | UnsetType = UNSET
    #: name of its host; of several hosts only
    host: str | UnsetType = UNSET


class MemoryByKind(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a user: the sum over their sessions, and their quota."""

    #: None: no quota
    quota_bytes: int | None = None
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    framework_bytes: int = 0
    #: the same as `ephemeral_bytes`
    live_bytes: int = 0
    shelf_bytes: int = 0
    #: what counts against the quota: what is in use without framework memory, and what an iteration of an open section
    #: is known to need beyond that
    quota_used_bytes: int = 0


class UserOnDevice(MemoryByKind, frozen=True, kw_only=True):
    """A user's memory and quota on one of several devices; quotas are by device."""

    device: str


class UserStatus(MemoryByKind, frozen=True, kw_only=True):
    """A user; memory is the sum over their sessions.

    A device's `used_bytes` are all users' persistent, framework, live and shelf bytes.
    """

    name: str
    #: in which to show the user, ``#rrggbb``, the same for everybody who looks; absent before their first session
    colour: str | UnsetType = UNSET
    share: float = 1.0
    offloaded_bytes: int = 0
    #: device-seconds, those of ended sessions too
    attained_service_seconds: float = 0.0
    iterations: int = 0
    #: memory of the machine, not of the device, of what serves their files and terminals
    server_bytes: int = 0
    #: most persistent and ephemeral memory at one time
    peak_bytes: int | None = None
    #: how long grants were waited for; None: none was yet
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None
    #: of several devices only
    devices: list[UserOnDevice] | UnsetType = UNSET


class ProgramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A program that a session started and that uses the device."""

    name: str
    #: processes that have memory on the device, and how much
    processes: int
    bytes: int
    #: why it takes no turns with its session, for people; None: it does when it computes
    note: str | None = None


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A session."""

    id: str
    user: str
    state: str
    #: id under which clients know it; None if unknown or hidden from the reader (as are `notebook` and `client_key`)
    kernel_id: str | None = None
    #: it was shut down and can be brought back, for how long still (None: it was not); and whether by a restart
    lingering: bool = False
    lingering_seconds: float | None = None
    restarted: bool = False
    #: what of its user's goes on or is held in one that was shut down, in a few words each, such as "port 8000"
    still_has: list[str] = []
    #: since something last ran in it; and whether anything ever did
    idle_seconds: float = 0.0
    used: bool = True
    #: path
    notebook: str | None = None
    client_key: str | None = None
    #: threads in which it computes, beside its cells
    threads: int = 0
    #: programs that it started and that use the device; hidden from others than its user
    programs: list[ProgramStatus] = []
    lane: int | None = None
    #: why it uses no lane whose bytes others share, for people
    lane_note: str | None = None
    persistent_bytes: int = 0
    #: in use right now beyond the persistent memory: an iteration has it, and gives it back
    ephemeral_bytes: int = 0
    framework_bytes: int = 0
    #: the same as `ephemeral_bytes`
    live_bytes: int = 0
    #: what its next iteration is expected to need; nothing of it is in use. None: not known
    iteration_bytes: int | None = None
    offloaded_bytes: int = 0
    #: what stayed on the device when it was offloaded, or why it was not, for people
    offload_note: str | None = None
    offloads: int = 0
    restores: int = 0
    offload_seconds: float = 0.0
    restore_seconds: float = 0.0
    iterations: int = 0
    #: mean device time of an iteration
    iteration_seconds: float | None = None
    attained_service_seconds: float = 0.0
    #: device time that it was seen to use without a grant
    ungranted_service_seconds: float = 0.0
    #: from 1; None: not queued
    queue_position: int | None = None
    #: ``memory``, ``lane``, ``restore``, or ``quota``: its restore waits for other sessions of its user; None: nothing
    waiting_for: str | None = None
    memory_wait_seconds: float | None = None
    #: memory that it waits for, and how much of that is free; None: it waits for none, or only for its turn to get it
    needed_bytes: int | None = None
    free_bytes: int | None = None
    #: id of the session whose memory is expected to leave the device next for it, within `memory_wait_seconds`
    room_from: str | None = None
    #: device time that its open cell still needs, and where that is known from
    remaining_seconds: float | None = None
    remaining_from: str | None = None
    #: until that cell ends, with its turns and waits; None: not known well enough
    time_left_seconds: float | None = None
    #: how busy it keeps the device alone (0 to 1), as measured of its code now and of its code before
    utilisation: float | None = None
    utilisation_predicted: float | None = None
    #: how many times longer its iterations take beside others, as measured and as predicted
    slowdown: float | None = None
    slowdown_predicted: float | None = None
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None
    #: name of its device; of several devices only
    device: str | UnsetType = UNSET
    #: name of its host; of several hosts only
    host: str | UnsetType = UNSET


class RoomRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A user whose cell waits for memory asks for that of an idle session."""

    #: the idle session, its user, and its bytes
    session: str
    owner: str
    bytes: int
    #: the session that waits, and its user
    asking_session: str
    asked_by: str


class Draining(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway starts no more sessions, and stops once the cells that run have ended."""

    #: cells that it waits for
    cells: int
    #: when it stops at the latest, in seconds since 1970; None: when the last of them has ended
    until: float | None


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A status document.

    `devices` and `placement`, the rule that places new sessions, are there only for several devices; `hosts` only for
    several hosts, `left_out` where they are too many for one answer; `draining` only while the gateway that sends it
    drains.
    """

    device: DeviceStatus
    lanes: list[LaneStatus] = []
    users: list[UserStatus] = []
    sessions: list[SessionStatus] = []
    devices: list[DeviceEntry] | UnsetType = UNSET
    placement: str | UnsetType = UNSET
    hosts: list[HostEntry] | UnsetType = UNSET
    left_out: LeftOut | UnsetType = UNSET
    room_requests: list[RoomRequest] | UnsetType = UNSET
    draining: Draining | UnsetType = UNSET

    def session(self, session: str) -> SessionStatus | None:
        """Return the entry of the session with an id; None if there is none."""
        return next((entry for entry in self.sessions if entry.id == session), None)

    def user(self, name: str) -> UserStatus | None:
        """Return a user's entry; None if there is none."""
        return next((entry for entry in self.users if entry.name == name), None)

    def visible_to(self, user: str) -> StatusDocument:
        """Return the document without what only an admin and a session's owner may see.

        Parameters
        ----------
        user
            Who is no admin. Other users' sessions are shown without notebook and kernel.
        """
        own: dict[str, Any] = {"notebook": None, "kernel_id": None, "client_key": None, "still_has": [], "programs": []}
        sessions = [entry if entry.user == user else replace(entry, **own) for entry in self.sessions]
        requests = self.room_requests and [each for each in self.room_requests if user in (each.owner, each.asked_by)]
        return replace(self, sessions=sessions, room_requests=requests)

    @property
    def has_hosts(self) -> bool:
        """Whether it is of more than one host, so that people have to be told which."""
        return self.hosts is not UNSET and len(self.hosts) > 1

    def by_device(self) -> dict[str, StatusDocument | DeviceEntry]:
        """Return a document for each device, by the device's name, in the configured order.

        Lanes have the numbers that their own executor gives them, and `users` are everybody's. Of a device whose
        executor does not answer there is only its entry.
        """
        if not self.devices:
            return {self.device.name: self}
        return {entry.name: self._only(entry) if entry.available else entry for entry in self.devices}

    def _only(self, device: DeviceEntry) -> StatusDocument:
        numbers: dict[int | None, int] = {
            lane.id: lane.id if lane.number is UNSET else lane.number for lane in self.lanes
        }
        return replace(
            self,
            device=device.status(),
            lanes=[replace(lane, id=numbers[lane.id]) for lane in self.lanes if lane.device == device.name],
            sessions=[
                replace(entry, lane=numbers.get(entry.lane)) for entry in self.sessions if entry.device == device.name
            ],
        )

    def only_device(self, name: str) -> dict[str, StatusDocument | DeviceEntry]:
        """Return what :meth:`by_device` has for one device.

        Parameters
        ----------
        name
            Of the device, or of a host for all of its devices; empty: all devices.

        Raises
        ------
        ConfigError
            When there is no such device.
        """
        documents = self.by_device()
        found = {each: documents[each] for each in documents if name in ("", each) or each.startswith(f"{name}/")}
        if not found:
            raise ConfigError(f"there is no device {name!r} here; name one of {', '.join(documents)}.")
        return found


class WatchedStatus(StatusDocument, frozen=True, kw_only=True):
    """The document that a session is sent while it watches, as its user may see it."""

    #: the last minutes
    timeline: DeviceTimeline


def read_status(data: object, sender: str) -> StatusDocument:
    """Return the status document in *data*; see :func:`read_part`."""
    return read_part(data, StatusDocument, "status document", sender)


def read_part(data: object, kind: type[Part], what: str, sender: str) -> Part:
    """Return the status document or timeline in *data*.

    Parameters
    ----------
    data
        What JSON or msgpack was decoded to, or msgpack that is not decoded yet.
    kind
        Its type.
    what, sender
        What it is and who sent it, for the error: such as ``the gateway at http://…``.

    Raises
    ------
    ProtocolError
        When it is none, with one sentence.
    """
    try:
        if isinstance(data, msgspec.Raw):
            return msgspec.msgpack.decode(data, type=kind)
        return msgspec.convert(data, kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{sender} sent no {what} that this version can read ({error}); "
            "it may be of another version: install the same one on both sides."
        ) from None


def pack_part(part: msgspec.Struct) -> msgspec.Raw:
    """Return a status document or timeline as part of a message; :func:`read_part` reads it."""
    return msgspec.Raw(msgspec.msgpack.encode(part))
