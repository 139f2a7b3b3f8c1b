"""Placement of new sessions: the demand of a notebook and the state of the devices. Pure.

The rules are the core's (`scheduling/placement.py`); this module provides their input:

- a device's *load* is the number of sessions in use on it: with a running cell, or active in the last minutes. So a
  notebook that was just opened counts, and one left open since yesterday does not;
- its *free memory* is what no session, lane or shelf has. Idle sessions can be offloaded, so a full device is worse,
  but possible;
- its *speed*, and the *memory* and *utilisation* that a notebook will need, are those of its earlier sessions
  (:class:`NotebookHistory`), if there were any since the gateway started. A device on which it never ran is taken to be
  as fast as the fastest, so that it is tried;
- the remaining time of a notebook is unknown, so each session in use is taken to need as long as the new one.

A user with entries on a device's shelf is placed there first of all: they cannot be used elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling.placement import Demand, DeviceId, DeviceState, place_session
from sharedkernel.status.document import SessionStatus, StatusDocument

#: most notebooks remembered
_MAX_NOTEBOOKS = 1000


@dataclass(slots=True)
class _Observed:
    """Figures of a notebook's sessions."""

    #: largest memory of one, bytes
    memory: int = 0
    #: utilisation of its device when alone, 0 to 1; None: not known
    utilisation: float | None = None
    #: device time per iteration by device, seconds
    seconds: dict[str, float] = field(default_factory=dict)


class NotebookHistory:
    """The needs of users' notebooks until now, by user and path; the least recently seen are forgotten."""

    def __init__(self) -> None:
        self._notebooks: dict[tuple[str, str], _Observed] = {}

    def observe(self, device: str, status: StatusDocument) -> None:
        """Record the sessions of a device.

        Parameters
        ----------
        device
            Its name in the configuration.
        status
            Its status document, nothing hidden.
        """
        for session in status.sessions:
            if session.notebook is not None:
                key = session.user, session.notebook
                seen = self._notebooks[key] = self._notebooks.pop(key, _Observed())
                seen.memory = max(seen.memory, memory_of(session) + (session.iteration_bytes or 0))
                if (utilisation := utilisation_of(session)) is not None:
                    seen.utilisation = utilisation
                if session.iteration_seconds:
                    seen.seconds[device] = session.iteration_seconds
        while len(self._notebooks) > _MAX_NOTEBOOKS:
            del self._notebooks[next(iter(self._notebooks))]

    def demand(self, user: str, notebook: str | None, devices: Collection[str]) -> Demand:
        """Return the demand of a new session.

        Parameters
        ----------
        user, notebook
            Its user, and the path of its notebook if there is one.
        devices
            The devices to choose from, by name.
        """
        seen = self._notebooks.get((user, notebook or ""), _Observed())
        known = {name: seconds for name, seconds in seen.seconds.items() if name in devices}
        fastest = min(known.values(), default=None)
        return Demand(
            memory=seen.memory,
            utilisation=1.0 if seen.utilisation is None else seen.utilisation,
            seconds={} if fastest is None else {name: known.get(name, fastest) for name in devices},
        )


def choose(rule: str, demand: Demand, documents: Mapping[str, StatusDocument], in_use: Mapping[str, int]) -> str:
    """Return the device for a new session.

    Parameters
    ----------
    rule
        A name of :data:`~sharedkernel.scheduling.placement.PLACEMENTS`.
    demand
        Demand of the session.
    documents
        Status documents of the devices to choose from, in the configuration's order; at least one.
    in_use
        Number of sessions in use or starting on each device.
    """
    return place_session(
        rule, demand, [device_state(name, documents[name], in_use[name], demand) for name in documents]
    )


def device_state(name: str, document: StatusDocument, in_use: int, demand: Demand) -> DeviceState:
    """Return a device as placement sees it.

    Parameters
    ----------
    name
        In the configuration.
    document
        Its status document.
    in_use
        Number of sessions in use or starting on it.
    demand
        Of the session to be placed: how fast the device is for it.
    """
    device, sessions = document.device, document.sessions
    capacity = device.capacity_bytes - device.reserve_bytes
    taken = sum(memory_of(session) for session in sessions) + sum(lane.size_bytes for lane in document.lanes)
    taken += sum(user.shelf_bytes for user in document.users)
    known = [value for session in sessions if (value := utilisation_of(session)) is not None]
    typical = sum(known) / len(known) if known else 1.0
    seconds = demand.seconds.get(name, 1.0)
    return DeviceState(
        id=DeviceId(name),
        kind=name,
        capacity=capacity,
        free=max(0, capacity - taken),
        active=in_use,
        speed=min(demand.seconds.values()) / seconds if demand.seconds else 1.0,
        utilisation=in_use * typical,
        backlog=in_use * seconds,
    )


def shelf_owners(document: StatusDocument) -> set[str]:
    """Return the names of users with entries on the shelf of a device, from its status document."""
    return {entry.name for entry in document.users if entry.shelf_bytes}


def utilisation_of(session: SessionStatus) -> float | None:
    """Return how busy (0 to 1) a session of a status document keeps its device alone, its code now or else before."""
    return session.utilisation_predicted if session.utilisation is None else session.utilisation


def memory_of(session: SessionStatus) -> int:
    """Return the bytes that a session of a status document holds between iterations."""
    return session.persistent_bytes + session.framework_bytes
