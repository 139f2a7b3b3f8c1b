"""The TCP sockets of this machine, as the system lists them: which listen, and the other ends of connections."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

#: states, as the system numbers them
_ESTABLISHED, _ARRIVING, _LISTENING = 0x01, 0x03, "0A"
#: address and port, as `socket.getsockname` begins with them
Address = tuple[str, int]


class TcpSocket(NamedTuple):
    """A socket; its addresses are as the system writes them, in hexadecimal digits."""

    address: str
    port: int
    state: int
    #: account of the process that made or accepted it
    uid: int
    #: 0: no process has it, as before a connection is accepted
    inode: int

    @property
    def is_accepted(self) -> bool:
        """Whether a process has accepted the connection, or that is over before it was seen."""
        return self.inode != 0 or self.state not in (_ESTABLISHED, _ARRIVING)


def listening() -> list[TcpSocket]:
    """Return the sockets of this process's network that accept connections."""
    return [_parse(line) for line in _lines() if line.split(None, 4)[3] == _LISTENING]


def listening_on_loopback() -> list[TcpSocket]:
    """Return the sockets that accept connections to this machine's loopback addresses."""
    return [each for each in listening() if each.address in _REACHED_BY_LOOPBACK]


def accepted(connections: Collection[tuple[Address, Address]]) -> dict[tuple[Address, Address], TcpSocket]:
    """Return the sockets at the other ends of connections of this machine with itself, as far as they were accepted.

    Parameters
    ----------
    connections
        The own and the other address of each.
    """
    wanted = {
        (f"{form}:{other[1]:04X}", f"{own_form}:{own[1]:04X}"): (own, other)
        for own, other in connections
        for form, own_form in zip(_forms(other[0]), _forms(own[0]), strict=True)
    }
    found = {}
    for line in _lines():  # most of which are of others: there may be many
        _, address, peer, _ = line.split(None, 3)
        if (connection := wanted.get((address, peer))) is not None and (tcp := _parse(line)).is_accepted:
            found[connection] = tcp
    return found


def read_table(path: str) -> list[str]:
    """Return the lines of a table of sockets but the first; none if this system has no such table."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace").splitlines()[1:]
    return []


def _lines() -> list[str]:
    return read_table("/proc/self/net/tcp") + read_table("/proc/self/net/tcp6")


def _parse(line: str) -> TcpSocket:
    fields = line.split(None, 10)
    address, _, port = fields[1].partition(":")
    return TcpSocket(address, int(port, 16), int(fields[3], 16), int(fields[7]), int(fields[9]))


def _forms(address: str) -> list[str]:
    """Return how the system writes an address: of IPv4 also as a socket for both versions has it."""
    mapped = [f"::ffff:{address}"] if "." in address else []
    return [
        "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", ipaddress.ip_address(each).packed))
        for each in (address, *mapped)
    ]


_REACHED_BY_LOOPBACK = frozenset(form for each in ("127.0.0.1", "0.0.0.0", "::1", "::") for form in _forms(each))
