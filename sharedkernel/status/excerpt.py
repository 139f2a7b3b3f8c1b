"""The part of a large status document that one reader gets, so that its size does not grow with the cluster. Pure.

The reader's own sessions come first, then what they ask about, then what runs or waits. What is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from sharedkernel.status.document import LeftOut, SessionStatus, StatusDocument

#: most entries of each kind, and of a user's devices, in an answer
MAX_HOSTS, MAX_DEVICES, MAX_LANES, MAX_SESSIONS, MAX_USERS, MAX_DEVICES_OF_USER = 200, 64, 256, 500, 300, 16

_T = TypeVar("_T")


def excerpt(status: StatusDocument, user: str, about: str = "") -> StatusDocument:
    """Return a document of bounded size, with `left_out` if it lacks anything.

    Parameters
    ----------
    status
        A document of several devices.
    user
        The reader, whose own sessions and devices come first.
    about
        What comes next: the name of a host, a device, a user or a notebook, or the begin of a kernel's id; empty:
        nothing in particular.
    """

    def rank(session: SessionStatus) -> int:
        if session.user == user:
            return 0
        return 1 if about and _is_about(session, about) else 2 if session.state != "idle" else 3

    wanted: dict[str, int] = {}
    active: Counter[str] = Counter()
    for session in status.sessions:
        device, place = session.device or "", rank(session)
        wanted[device] = min(place, wanted.get(device, 3))
        active[device] += place == 2
    devices = _first(
        status.devices or [],
        MAX_DEVICES,
        lambda device: (
            min(wanted.get(device.name, 3), 1 if _names(about, device.name, device.host or "") else 3),
            device.available,
            -active[device.name],
        ),
    )
    listed = {device.name for device in devices}
    sessions = _first([each for each in status.sessions if each.device in listed], MAX_SESSIONS, rank)
    users_shown = {session.user for session in sessions}
    users = _first(
        status.users,
        MAX_USERS,
        lambda each: (each.name != user, each.name != about, each.name not in users_shown, -each.persistent_bytes),
    )
    lanes = _first([lane for lane in status.lanes if lane.device in listed], MAX_LANES, lambda lane: not lane.queue)
    hosts = _first(
        status.hosts or [], MAX_HOSTS, lambda host: (host.name != about, bool(host.answering and not host.cordoned))
    )
    left_out = LeftOut(
        hosts=len(status.hosts or []) - len(hosts),
        devices=len(status.devices or []) - len(devices),
        lanes=len(status.lanes) - len(lanes),
        sessions=len(status.sessions) - len(sessions),
        users=len(status.users) - len(users),
    )
    if left_out == LeftOut():
        return status
    kept = {lane.id for lane in lanes}
    return replace(
        status,
        hosts=hosts,
        devices=devices,
        lanes=[replace(lane, queue=lane.queue[:MAX_SESSIONS]) for lane in lanes],
        sessions=[each if each.lane in kept else replace(each, lane=None) for each in sessions],
        users=[
            replace(each, devices=[on for on in each.devices or () if on.device in listed][:MAX_DEVICES_OF_USER])
            for each in users
        ],
        left_out=left_out,
    )


def _is_about(session: SessionStatus, about: str) -> bool:
    if _names(about, session.user, session.host or "", session.device or ""):
        return True
    notebook = (session.notebook or "").rpartition("/")[2]
    return notebook == about or (session.kernel_id or "").startswith(about)


def _names(about: str, *names: str) -> bool:
    return bool(about) and about in names


def _first(entries: Iterable[_T], most: int, rank: Callable[[_T], object]) -> Sequence[_T]:
    """Return the first *most* entries by *rank*, in the order that they had."""
    entries = list(entries)
    if len(entries) <= most:
        return entries
    order = sorted(range(len(entries)), key=lambda number: (rank(entries[number]), number))  # type: ignore[arg-type,return-value]
    return [entries[number] for number in sorted(order[:most])]
