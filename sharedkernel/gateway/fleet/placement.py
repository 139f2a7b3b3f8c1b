"""What the gateway knows of devices and notebooks when it has to say where a new session goes. Pure.

The rules are the core's (`scheduling/placement.py`); this module tells them what is wanted and how the devices are:

- a device's *load* is the sessions in use on it: with a cell running, or used in the last minutes. A notebook that was
  just opened counts, since its cells are about to come, and one left open since yesterday does not;
- its *free memory* is what no session, lane or shelf has; idle sessions can be offloaded, so that a full device is
  a worse place, not an impossible one;
- its *speed*, the *memory* and *utilisation* that a notebook will need are those of the notebook's earlier sessions
  (:class:`Experience`), if there were any since the gateway started. Where it never ran, a device is taken to be as
  fast as the fastest, so that it is tried;
- how long a notebook goes on nobody knows, so each session in use is taken to need as long as the one to be placed.

Before all that, a user who has something on a device's shelf is placed there: it cannot be had elsewhere.

A session must go somewhere, so when a rule has no device with the memory, or with nothing to do, it is asked as if
little were wanted, and at last the least loaded device is taken: cells wait for memory there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.placement import PLACEMENTS, Demand, DeviceId, DeviceState

#: notebooks remembered
_MOST_NOTEBOOKS = 1000


@dataclass(slots=True)
class _Seen:
    """What a notebook's sessions showed."""

    #: most bytes that one had
    memory: int = 0
    #: on its own, 0 to 1; None: not known
    utilisation: float | None = None
    #: device time per iteration by device, seconds
    seconds: dict[str, float] = field(default_factory=dict)


class Experience:
    """What users' notebooks needed until now, by user and path; the longest unseen are forgotten."""

    def __init__(self) -> None:
        self._notebooks: dict[tuple[str, str], _Seen] = {}

    def observe(self, device: str, status: Mapping[str, Any]) -> None:
        """Take note of the sessions in *status*, the document of *device* with nothing hidden."""
        for session in status["sessions"]:
            if session["notebook"] is not None:
                self._observe(device, session)
        while len(self._notebooks) > _MOST_NOTEBOOKS:
            del self._notebooks[next(iter(self._notebooks))]

    def _observe(self, device: str, session: Mapping[str, Any]) -> None:
        key = session["user"], session["notebook"]
        seen = self._notebooks[key] = self._notebooks.pop(key, _Seen())
        seen.memory = max(seen.memory, memory_of(session) + (session["ephemeral_bytes"] or 0))
        if (utilisation := utilisation_of(session)) is not None:
            seen.utilisation = utilisation
        if session["iteration_seconds"]:
            seen.seconds[device] = session["iteration_seconds"]

    def demand(self, user: str, notebook: str | None, devices: Mapping[str, Any]) -> Demand:
        """Return what a new session of *notebook* will need on *devices*."""
        seen = self._notebooks.get((user, notebook or ""), _Seen())
        known = {name: seconds for name, seconds in seen.seconds.items() if name in devices}
        fastest = min(known.values(), default=None)
        return Demand(
            memory=seen.memory,
            utilisation=1.0 if seen.utilisation is None else seen.utilisation,
            seconds={} if fastest is None else {name: known.get(name, fastest) for name in devices},
        )


def choose(rule: str, demand: Demand, documents: Mapping[str, Mapping[str, Any]], in_use: Mapping[str, int]) -> str:
    """Return the device for a new session.

    Parameters
    ----------
    rule
        A name of :data:`~sharedkernel.scheduling.placement.PLACEMENTS`.
    demand
        What it will need.
    documents
        The status documents of the devices to choose from, in the configuration's order; at least one.
    in_use
        Sessions in use on each, those being started included.
    """
    states = [_state(name, documents[name], in_use[name], demand) for name in documents]
    little = Demand(utilisation=0.0, seconds=demand.seconds)
    for name, wanted in ((rule, demand), (rule, little), ("least-loaded", little)):
        if (chosen := PLACEMENTS[name]().place(wanted, states)) is not None:
            return chosen[0]
    return states[0].id


def check_rule(name: Any) -> str:
    """Return *name* if there is such a rule.

    Raises
    ------
    ConfigError
        If not.
    """
    if name not in list(PLACEMENTS):
        raise ConfigError(f"placement is {name!r}; write one of {', '.join(map(repr, map(str, PLACEMENTS)))}.")
    return str(name)


def _state(name: str, document: Mapping[str, Any], in_use: int, demand: Demand) -> DeviceState:
    device, sessions = document["device"], document["sessions"]
    capacity = device["capacity_bytes"] - device["reserve_bytes"]
    taken = sum(memory_of(session) for session in sessions) + sum(lane["size_bytes"] for lane in document["lanes"])
    taken += sum(user.get("shelf_bytes", 0) for user in document["users"])
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


def shelf_owners(document: Mapping[str, Any]) -> set[str]:
    """Return who has something on the shelf of the device of *document*."""
    return {entry["name"] for entry in document["users"] if entry.get("shelf_bytes")}


def utilisation_of(session: Mapping[str, Any]) -> float | None:
    """Return how busy (0 to 1) a session of a status document keeps its device alone, seen or else predicted."""
    seen: float | None = session.get("utilisation")
    return session.get("utilisation_predicted") if seen is None else seen


def memory_of(session: Mapping[str, Any]) -> int:
    """Return the bytes that a session of a status document keeps between iterations."""
    return int(session["persistent_bytes"] + session["framework_bytes"])
