"""The kinds of device that an executor can serve, and what each has to answer for.

`host.py` is the processor with a configured amount of memory, `cuda/` is one NVIDIA GPU. The service knows neither: it
holds one :class:`ServedDevice`, made by the command line (`executor/app.py`), and asks it

- at the start and the end (:meth:`ServedDevice.start`, :meth:`ServedDevice.stop`), for what runs beside the service;
- before a session starts, whether it may (:meth:`ServedDevice.check_start`) and with which variables
  (:meth:`ServedDevice.environment`);
- whose sessions may share a lane's bytes (:meth:`ServedDevice.trust_domain`), and who gives them (`lane_server`);
- whenever memory was measured, to lease it anew (:meth:`ServedDevice.update`);
- for status (:meth:`ServedDevice.details`), what only this kind of device has to say.

A device that watches what sessions do to it acts on them through :class:`SessionControl`, which the service makes.
Scheduling is none of a device's business: that is the core's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import ConfigError
from sharedkernel.executor.devices.lane_server import LaneServer
from sharedkernel.executor.devices.leases import Leases, UserMemory
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.programs import Program
from sharedkernel.protocol import Allowance, Device, Limits
from sharedkernel.status.document import DeviceDetails
from sharedkernel.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionControl:
    """The interventions of a device against sessions; called on the event loop."""

    #: returns the processes that serve a session now
    sessions: Callable[[], Iterable[SessionHandle]]
    #: shows a sentence in the session's notebook
    warn: Callable[[SessionHandle, str], None]
    #: asks for the session's memory to be moved away as soon as it is idle
    offload: Callable[[SessionHandle], None]
    #: ends the session, for a slug that metrics count and a sentence that its user is told
    end: Callable[[SessionHandle, str, str], None]
    #: takes all the programs of a session that use the device; those that compute take turns with it
    list_programs: Callable[[SessionHandle, Sequence[Program]], None]
    #: returns what each session, by its id, was served so far, in device-seconds
    attained: Callable[[], Mapping[str, float]]
    #: returns the bytes that a user's shelf is charged with
    shelf_of: Callable[[str], int]
    #: counts seconds in which the session used the device without a grant as served
    charge: Callable[[SessionHandle, float], None]


class ServedDevice(ABC):
    """One device, on the executor's side.

    Parameters
    ----------
    device
        Its public description.
    """

    #: the memory mode of new sessions; known once :meth:`start` has returned
    memory_mode: DeviceMemoryMode
    #: the server of device memory, also where only sessions of an executor before this share any; None: there is none
    lane_server: LaneServer | None = None
    #: whether sessions poison a lane when they hand it over, to find what still uses it
    check_lanes = False

    def __init__(self, device: Device) -> None:
        self.device = device
        self._leases = Leases(device, self._notify)

    @abstractmethod
    async def start(self, runtime_directory: Path, control: SessionControl) -> None:
        """Try what has not been tried, and start what runs beside the service, before the first session.

        Raises
        ------
        ConfigError
            When something that was required does not start.
        """

    def hurry(self) -> None:  # noqa: B027 (does nothing by default)
        """Return soon from :meth:`start`, if that is under way: the executor is to end."""

    @abstractmethod
    async def stop(self, *, end_sessions: bool) -> None:
        """Stop what :meth:`start` started; what sessions that run on need stays."""

    @abstractmethod
    def trust_domain(self, limits: Limits) -> str:
        """Return the name that sessions have in common which may share a lane's bytes."""

    def check_start(self, limits: Limits, others: Iterable[SessionHandle]) -> None:  # noqa: B027
        """Return if a session of this user may start beside *others*.

        Raises
        ------
        Refused
            With one sentence that says why not.
        """

    def environment(self, limits: Limits) -> dict[str, str]:
        """Return the variables that a session of this user is assigned with; they win over its client's."""
        return {}

    def update(self, users: Iterable[UserMemory], others: Iterable[UserMemory] = ()) -> None:
        """Lease memory anew to the sessions of *users*, some of whom may have none left.

        Figures of *others* may have changed, too; they keep the leases that they have.
        """
        self._leases.update(users, others)

    @abstractmethod
    def _notify(self, session: SessionHandle, allowance: Allowance) -> None:
        """Have the lease of a session hold, and tell the session of it if that is worth it."""

    @abstractmethod
    def seen_bytes(self, process: SessionHandle) -> int:
        """Return how much memory a session's process has at most, whatever it says itself."""

    @abstractmethod
    def utilisation(self, process: SessionHandle, reported: float | None) -> float | None:
        """Return how busy the device was (0 to 1) while this session held it, as measured since this was asked last.

        Parameters
        ----------
        process
            Serves the session.
        reported
            What the session measured itself; None: nothing.

        Returns
        -------
        float or None
            None where it was not measured.
        """

    @abstractmethod
    def details(self) -> DeviceDetails:
        """Return more fields for `device` in the status document."""


def check_capacity(device: Device, total: int, whole: str) -> Device:
    """Return *device* if it can have the bytes that it is to serve.

    Parameters
    ----------
    device
        As it is to be served.
    total, whole
        Bytes that there are, and the same in words.

    Raises
    ------
    ConfigError
        When it has not.
    """
    capacity = format_bytes(device.capacity_bytes)
    if device.capacity_bytes > total:
        raise ConfigError(f"a capacity of {capacity} is more than {whole}; name less with --capacity.")
    if device.usable_bytes <= 0:
        raise ConfigError(
            f"a reserve of {format_bytes(device.reserve_bytes)} leaves nothing of the capacity of {capacity}; name "
            "less with --reserve, or more with --capacity."
        )
    return device
