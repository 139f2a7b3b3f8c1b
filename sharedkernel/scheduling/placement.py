"""Placement: which of several devices a session or a job gets.

A rule takes a demand and the state of the devices, and returns a device, or None if nothing suits now. It changes
nothing; its caller keeps the state. Memory is never promised twice: a device whose free memory is
less than what is wanted is out of the question for every rule.

least-loaded
    The device with the least to do: fewest active sessions for its speed, then most free memory.
tiresias
    For jobs with a device of their own (NSDI'19 §4.4): an idle device, on the node that is fullest, so that whole nodes
    stay free. Jobs on several devices, which Tiresias spreads by their models' tensors, are not placed here.
allox
    For devices of different speeds: where what is waiting there now, and then this, ends soonest. It is the matching of
    `matching.py` for a single newcomer that must be placed at once.
horus
    For sessions that share devices (TPDS 2022): least predicted interference. The published cost formula is not to be
    had; ours is the sum of utilisations beyond what the device can give, then the misfit of memory, both in parts of
    the device. Utilisation is a session's on its own, as measured.

Not covered: when to place (`matching.py`, `policies/whole_jobs.py`), and moving what runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)


class PlacementName(StrEnum):
    """Rules by their names in the configuration."""

    LEAST_LOADED = "least-loaded"
    TIRESIAS = "tiresias"
    ALLOX = "allox"
    HORUS = "horus"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device as placement sees it.

    Raises
    ------
    ValueError
        When its capacity or its speed is not greater than 0.
    """

    id: DeviceId
    #: the machine that it is in
    node: str = ""
    #: devices of the same kind are alike in speed
    kind: str = ""
    #: memory, bytes
    capacity: int
    #: memory not promised to anybody, bytes
    free: int
    #: sessions on it that have work, jobs that run on it
    active: int = 0
    #: how fast it is, relative to others
    speed: float = 1.0
    #: sum of its active sessions' utilisations on their own (1: a session that keeps it busy all the time)
    utilisation: float = 0.0
    #: seconds until what waits and runs on it is done
    backlog: float = 0.0

    def __post_init__(self) -> None:
        if not (self.capacity > 0 and self.speed > 0):
            raise ValueError(f"device {self.id} has capacity {self.capacity} and speed {self.speed}; neither can be 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The needs of a session or a job that is placed on a device."""

    #: bytes it will need there
    memory: int = 0
    #: expected utilisation of a device on its own, 0 to 1
    utilisation: float = 1.0
    #: seconds it needs by kind of device; empty: not known, and in inverse proportion to speed
    seconds: Mapping[str, float] = field(default_factory=dict)


#: returns the device for a demand, of all as they are now; None: nothing suits now. Ties end in the devices' order
PlacementRule = Callable[[Demand, Sequence[DeviceState]], DeviceState | None]


def least_loaded(demand: Demand, devices: Sequence[DeviceState]) -> DeviceState | None:
    """Return the device with the least to do: fewest active sessions for its speed, then most free memory."""
    able = fitting(demand, devices)
    return min(able, key=lambda device: (device.active / device.speed, -device.free), default=None)


def consolidated(demand: Demand, devices: Sequence[DeviceState]) -> DeviceState | None:
    """Return an idle device of the node that has the fewest of them, so that larger holes stay: Tiresias."""
    idle = [device for device in fitting(demand, devices) if not device.active]
    free = Counter(device.node for device in idle)
    return min(idle, key=lambda device: free[device.node], default=None)


def soonest_done(demand: Demand, devices: Sequence[DeviceState]) -> DeviceState | None:
    """Return where it ends soonest, after what waits there and as fast as that kind of device is: AlloX for one."""

    def done_in(device: DeviceState) -> float:
        seconds = demand.seconds.get(device.kind, math.inf) if demand.seconds else 1 / device.speed
        return device.backlog + seconds

    able = [device for device in fitting(demand, devices) if done_in(device) < math.inf]
    return min(able, key=lambda device: (done_in(device), device.active), default=None)


def least_interference(demand: Demand, devices: Sequence[DeviceState]) -> DeviceState | None:
    """Return where least utilisation is beyond what the device can give, then the tightest fit of memory: Horus."""

    def cost(device: DeviceState) -> tuple[float, float]:
        misfit = (device.free - demand.memory) / device.capacity
        return (excess(demand, device) / device.speed, misfit)

    return min(fitting(demand, devices), key=cost, default=None)


def place_session(rule: str, demand: Demand, devices: Sequence[DeviceState]) -> DeviceId:
    """Return the device for a session, which must be placed: in the end where its cells wait for memory.

    Parameters
    ----------
    rule
        A name of :data:`PLACEMENTS`. If it finds no device, it is asked again with a small demand, and at last the
        least loaded device is taken.
    demand
        Demand of the session.
    devices
        The devices to choose from; at least one.
    """
    little = Demand(utilisation=0.0, seconds=demand.seconds)
    for name, wanted in ((rule, demand), (rule, little), (PlacementName.LEAST_LOADED, little)):
        if (chosen := PLACEMENTS[name](wanted, devices)) is not None:
            return chosen.id
    return devices[0].id


def excess(demand: Demand, device: DeviceState) -> float:
    """Return by how much the utilisations on a device would exceed what it can give.

    Parameters
    ----------
    demand
        To be placed on the device.
    device
        As it is without it.
    """
    return max(0.0, device.utilisation + demand.utilisation - 1.0)


def fitting(demand: Demand, devices: Sequence[DeviceState]) -> list[DeviceState]:
    """Return the devices that have the memory for a demand.

    Parameters
    ----------
    demand
        To be placed.
    devices
        All devices.
    """
    return [device for device in devices if device.free >= demand.memory]


#: every rule by its name
PLACEMENTS: Mapping[str, PlacementRule] = {
    PlacementName.LEAST_LOADED: least_loaded,
    PlacementName.TIRESIAS: consolidated,
    PlacementName.ALLOX: soonest_done,
    PlacementName.HORUS: least_interference,
}
