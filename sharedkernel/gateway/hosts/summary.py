"""The summary that a host sends to the fronts: what placement and the limits on sessions need, and no more.

A device takes at most 200 bytes of it, a user their name and a few bytes.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from sharedkernel.errors import ProtocolError
from sharedkernel.gateway.fleet.placement import device_state
from sharedkernel.scheduling.placement import Demand, DeviceId, DeviceState
from sharedkernel.status.document import StatusDocument

#: most bytes of a summary, and most devices in it
MAX_BYTES, MAX_DEVICES = 256 * 1024, 64
#: most characters of a device's name and model in it, and of a host's address and version
_MAX_WORD, _MAX_ADDRESS = 48, 200


class DeviceSummary(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A device of a host."""

    #: on the host, such as ``cuda:1``
    name: str
    #: devices of the same model are alike in speed
    model: str
    #: memory that sessions can use, and what is not taken of it, bytes
    capacity_bytes: int
    free_bytes: int
    #: sessions with work
    active: int
    #: sum of their utilisations
    utilisation: float

    def state(self, host: str) -> DeviceState:
        """Return the device of *host* as placement sees it; its id has the host's name and its own."""
        return DeviceState(
            id=DeviceId(f"{host}/{self.name}"),
            node=host,
            kind=self.model,
            capacity=max(1, self.capacity_bytes),
            free=self.free_bytes,
            active=self.active,
            utilisation=self.utilisation,
            backlog=float(self.active),
        )


class UserSummary(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A user on a host."""

    #: sessions that count towards their limit
    sessions: int
    #: whether a session waits there that they can have back, and whether they have tensors on a shelf there
    lingers: bool = False
    has_shelf: bool = False

    @property
    def has_left(self) -> bool:
        """Whether something waits for them there."""
        return self.lingers or self.has_shelf


class RaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A host's place in a Ray cluster."""

    #: whether its agent is in touch with the cluster's directory
    is_in: bool
    #: whether the agent found the host's services running, rather than starting them
    has_adopted: bool = False


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A host, as it registers."""

    name: str
    #: the URL at which fronts reach it
    address: str
    version: str
    #: when its gateway started, seconds since 1970
    started: float = 0.0
    devices: list[DeviceSummary]
    users: dict[str, UserSummary] = {}
    #: whether all its executors have said which users have something there
    is_complete: bool = False
    #: whether it is to get no new sessions
    is_cordoned: bool = False
    #: whether it is drained although shelves remain there
    leaves_shelves: bool = False
    #: None: no agent of a Ray cluster was ever there
    ray: RaySummary | None = None

    @property
    def is_drained(self) -> bool:
        """Whether it gets no new sessions, and nobody has anything there that it waits for."""
        remaining = (user.sessions or user.lingers or not self.leaves_shelves for user in self.users.values())
        return self.is_cordoned and self.is_complete and not any(remaining)


def summarize_device(name: str, document: StatusDocument, in_use: int) -> DeviceSummary:
    """Return the summary of a device.

    Parameters
    ----------
    name
        On its host; empty: its kind, where it is the only one.
    document
        Its status document.
    in_use
        Number of sessions in use or starting on it.
    """
    state = device_state(name, document, in_use, Demand())
    return DeviceSummary(
        name=(name or document.device.kind)[:_MAX_WORD],
        model=document.device.name[:_MAX_WORD],
        capacity_bytes=state.capacity,
        free_bytes=state.free,
        active=in_use,
        utilisation=round(state.utilisation, 2),
    )


def read_summary(data: bytes) -> HostSummary:
    """Return the summary that a host has sent.

    Raises
    ------
    ProtocolError
        When it is none, or too large.
    """
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"the summary has {len(data)} bytes; the limit is {MAX_BYTES}.")
    try:
        summary = msgspec.msgpack.decode(data, type=HostSummary)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"no summary that this version can read ({error}); install the same one.") from None
    if len(summary.devices) > MAX_DEVICES:
        raise ProtocolError(f"{len(summary.devices)} devices; the limit is {MAX_DEVICES}.")
    if max(len(summary.address), len(summary.version)) > _MAX_ADDRESS:
        raise ProtocolError(f"the address or the version has more than {_MAX_ADDRESS} characters.")
    if not _is_url(summary.address):
        raise ProtocolError(f"{summary.address!r} is no URL of a gateway, such as https://h1.example.org:8585.")
    return summary


def _is_url(address: str) -> bool:
    try:
        url = urlsplit(address)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
