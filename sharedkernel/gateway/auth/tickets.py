"""Tickets: the word of a cluster's front gateway, to a host's gateway, for a user whose token it has checked.

Each host has a key of its own, which follows from the cluster's secret and the host's name: a stolen one makes no
ticket for another host. A ticket is ``ticket.PURPOSE.NAME.ADMIN.EXPIRES.MAC``. It counts when a request comes or a
websocket is opened, not afterwards: the front closes the websockets of users whose tokens are revoked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

from sharedkernel.errors import ConfigError

#: what tickets begin with; no token does
TICKET = "ticket."
#: seconds for which a ticket counts; clocks of hosts may differ by as much
LIFETIME = 60
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_SHORTEST_KEY = 32


class Purpose(StrEnum):
    """The purposes of tickets."""

    #: a request of a user, from a front to a host
    REQUEST = "request"
    #: a host's registration at a front
    REGISTER = "register"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The content of a ticket."""

    #: of the user, or of the host that registers
    name: str
    admin: bool


class TicketKey:
    """The key of one host, which makes and checks tickets.

    Parameters
    ----------
    key
        The key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_host(cls, secret: bytes, host: str) -> TicketKey:
        """Return the key of *host* in the cluster with this *secret*."""
        return cls(host_key(secret, host).encode())

    def make(self, name: str, *, admin: bool, purpose: Purpose, now: float) -> str:
        """Return a ticket.

        Parameters
        ----------
        name
            Of the user, or of the host that registers.
        admin
            Whether the user is an admin.
        purpose
            What it is for.
        now
            Seconds since the epoch.
        """
        encoded = base64.urlsafe_b64encode(name.encode()).decode()
        said = f"{TICKET}{purpose}.{encoded}.{int(admin)}.{int(now) + LIFETIME}"
        return f"{said}.{self._mac(said)}"

    def read(self, ticket: str, *, purpose: Purpose, now: float) -> Ticket | None:
        """Return what *ticket* says; None if it is forged, expired, or for another host or *purpose*.

        Parameters
        ----------
        ticket, purpose
            The ticket, and what it has to be for.
        now
            Seconds since the epoch.
        """
        said, _, mac = ticket.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(said).encode()):
            return None
        _, found, name, admin, expires = said.split(".")
        if found != purpose or int(expires) < now:
            return None
        return Ticket(name=base64.urlsafe_b64decode(name).decode(), admin=admin == "1")

    def _mac(self, said: str) -> str:
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()


def host_key(secret: bytes, host: str) -> str:
    """Return the key of *host* in the cluster with this *secret*, as text for a file."""
    return hmac.new(secret, check_host_name(host).encode(), hashlib.sha256).hexdigest()


def host_prefix(host: str) -> str:
    """Return the 8 hexadecimal digits with which the ids of all kernels of *host* begin."""
    return hashlib.sha256(host.encode()).hexdigest()[:8]


def new_id(host: str) -> str:
    """Return the id of a new kernel or notebook session of *host*; "": the gateway is in no cluster."""
    prefix = host_prefix(host) if host else ""
    return prefix + str(uuid4())[len(prefix) :]


def check_host_name(name: str) -> str:
    """Return *name* if a host can be called so.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(f"a host cannot be called {name!r}; use at most 63 letters, digits, dots and hyphens.")
    return name


def read_key(path: Path) -> bytes:
    """Return the key in a private file.

    Raises
    ------
    ConfigError
        When it cannot be read, others can read it, or it is too short to be a key.
    """
    try:
        mode, key = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the cluster's key {path} cannot be read ({error.strerror}).") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"others can read the cluster's key {path}; run `chmod 600 {path}`.")
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"the key in {path} has {len(key)} characters and could be guessed; write at least {_SHORTEST_KEY}, as "
            "with `openssl rand -hex 32`."
        )
    return key
