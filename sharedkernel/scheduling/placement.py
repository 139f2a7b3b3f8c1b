"""Placement: which of several devices a session or a job gets.

A rule takes a demand and the state of the devices, and returns devices, or None if nothing suits now. It changes
nothing; its caller keeps the state. Memory is never promised twice: a device whose free memory is
less than what is wanted is out of the question for every rule.

least-loaded
    The device with the least to do: fewest active sessions for its speed, then most free memory.
tiresias
    For jobs on several devices (NSDI'19 §4.4). A model whose largest tensor makes up much of it loses by being spread
    over nodes, so it is *consolidated* on as few as possible, and waits if they are not free; others take what is left
    over on the fullest nodes, so that whole nodes stay free for those.
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

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)

#: part of a model that its largest tensor makes up, from which on the model is consolidated: VGG and AlexNet (0.7 and
#: more) are, ResNet and Inception (less than 0.1) are not
_SKEWED = 0.3


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

    #: bytes it will need on each device
    memory: int = 0
    #: devices it needs, all at once
    devices: int = 1
    #: expected utilisation of a device on its own, 0 to 1
    utilisation: float = 1.0
    #: its largest tensor's part of the model, 0 to 1: how much it loses by being spread over nodes
    skew: float = 0.0
    #: seconds it needs by kind of device; empty: not known, and in inverse proportion to speed
    seconds: Mapping[str, float] = field(default_factory=dict)


class PlacementRule(ABC):
    """Chooses devices."""

    @abstractmethod
    def place(self, demand: Demand, devices: Sequence[DeviceState]) -> tuple[DeviceId, ...] | None:
        """Return the devices for a demand, as many as it needs; None: nothing suits now.

        Called once for each session or job that starts. Ties end in the order of the devices.

        Parameters
        ----------
        demand
            To be placed.
        devices
            All devices, as they are now.
        """


class LeastLoaded(PlacementRule):
    """The devices with the least to do."""

    def place(self, demand: Demand, devices: Sequence[DeviceState]) -> tuple[DeviceId, ...] | None:
        """See :meth:`PlacementRule.place`."""
        order = sorted(fitting(demand, devices), key=lambda device: (device.active / device.speed, -device.free))
        return _first(order, demand.devices)


class Consolidating(PlacementRule):
    """Tiresias: skewed models on as few nodes as possible, others where they leave whole nodes free."""

    def place(self, demand: Demand, devices: Sequence[DeviceState]) -> tuple[DeviceId, ...] | None:
        """See :meth:`PlacementRule.place`: devices that are not shared, those with nothing to do."""
        idle: dict[str, list[DeviceState]] = {}
        sizes: dict[str, int] = {}
        for device in devices:
            sizes[device.node] = sizes.get(device.node, 0) + 1
        for device in fitting(demand, devices):
            if not device.active:
                idle.setdefault(device.node, []).append(device)
        enough = [node for node, free in idle.items() if len(free) >= demand.devices]
        if enough:
            # The node that it fills best, so that larger holes stay.
            return _first(idle[min(enough, key=lambda node: len(idle[node]))], demand.devices)
        fullest_first = sorted(idle, key=lambda node: len(idle[node]))
        if demand.skew < _SKEWED:
            return _first([device for node in fullest_first for device in idle[node]], demand.devices)
        # over how many nodes the devices must be spread, were all of them free
        totals = itertools.accumulate(sorted(sizes.values(), reverse=True))
        nodes = 1 + sum(total < demand.devices for total in totals)
        chosen = sorted(idle, key=lambda node: -len(idle[node]))[:nodes]
        return _first([device for node in chosen for device in idle[node]], demand.devices)


class SoonestDone(PlacementRule):
    """AlloX for one newcomer: where it ends soonest, after what waits there and as fast as that kind of device is."""

    def place(self, demand: Demand, devices: Sequence[DeviceState]) -> tuple[DeviceId, ...] | None:
        """See :meth:`PlacementRule.place`."""

        def done_in(device: DeviceState) -> float:
            seconds = demand.seconds.get(device.kind, math.inf) if demand.seconds else 1 / device.speed
            return device.backlog + seconds

        able = [device for device in fitting(demand, devices) if done_in(device) < math.inf]
        return _first(sorted(able, key=lambda device: (done_in(device), device.active)), demand.devices)


class LeastInterference(PlacementRule):
    """Horus: least utilisation beyond what a device can give, then the tightest fit of memory.

    Parameters
    ----------
    tolerance
        Utilisation beyond 1 that is borne; a device that would have more is not shared. Infinite: any is borne.
    """

    def __init__(self, *, tolerance: float = math.inf) -> None:
        self._tolerance = tolerance

    def place(self, demand: Demand, devices: Sequence[DeviceState]) -> tuple[DeviceId, ...] | None:
        """See :meth:`PlacementRule.place`."""
        able = [
            device
            for device in fitting(demand, devices)
            if not device.active or excess(demand, device) <= self._tolerance
        ]

        def cost(device: DeviceState) -> tuple[float, float]:
            misfit = (device.free - demand.memory) / device.capacity
            return (excess(demand, device) / device.speed, misfit)

        return _first(sorted(able, key=cost), demand.devices)


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
        if (chosen := PLACEMENTS[name]().place(wanted, devices)) is not None:
            return chosen[0]
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


def _first(devices: Sequence[DeviceState], count: int) -> tuple[DeviceId, ...] | None:
    if len(devices) < count:
        return None
    return tuple(device.id for device in devices[:count])


#: every rule by its name
PLACEMENTS: Mapping[str, type[PlacementRule]] = {
    PlacementName.LEAST_LOADED: LeastLoaded,
    PlacementName.TIRESIAS: Consolidating,
    PlacementName.ALLOX: SoonestDone,
    PlacementName.HORUS: LeastInterference,
}
