"""The TCP sockets of this machine, as the system lists them: which listen, and the other ends of connections."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_LISTENING = "0A"
#: address and port, as `socket.getsockname` begins with them
Address = tuple[str, int]


class TcpSocket(NamedTuple):
    """A socket; its addresses are as the system writes them, in hexadecimal digits."""

    address: str
    port: int
    peer: str
    peer_port: int
    is_listening: bool
    #: account of the process that made or accepted it
    uid: int
    #: 0: it belongs to no process, as a connection before it is accepted
    inode: int


def tcp_sockets() -> Iterator[TcpSocket]:
    """Yield all TCP sockets of this process's network."""
    for kind in ("tcp", "tcp6"):
        for fields in read_table(f"/proc/self/net/{kind}"):
            (address, _, port), (peer, _, peer_port) = fields[1].partition(":"), fields[2].partition(":")
            is_listening = fields[3] == _LISTENING
            yield TcpSocket(
                address, int(port, 16), peer, int(peer_port, 16), is_listening, int(fields[7]), int(fields[9])
            )


def listening_on_loopback() -> Iterator[TcpSocket]:
    """Yield the sockets that accept connections to this machine's loopback addresses."""
    return (each for each in tcp_sockets() if each.is_listening and each.address in _REACHED_BY_LOOPBACK)


def accepted(connections: Collection[tuple[Address, Address]]) -> dict[tuple[Address, Address], TcpSocket]:
    """Return the sockets at the other ends of connections of this machine with itself, as far as they were accepted.

    Parameters
    ----------
    connections
        The own and the other address of each.
    """
    wanted = {
        (form, other[1], own_form, own[1]): (own, other)
        for own, other in connections
        for form, own_form in zip(_forms(other[0]), _forms(own[0]), strict=True)
    }
    return {wanted[each[:4]]: each for each in tcp_sockets() if each.inode and each[:4] in wanted}


def read_table(path: str) -> Iterator[list[str]]:
    """Yield the fields of each line of a table of sockets but the first; nothing if this system has no such table."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path(path).read_text(errors="replace").splitlines()
    yield from (fields for line in lines[1:] if len(fields := line.split()) > 6)


def _forms(address: str) -> list[str]:
    """Return how the system writes an address: of IPv4 also as a socket for both versions has it."""
    mapped = [f"::ffff:{address}"] if "." in address else []
    return [
        "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", ipaddress.ip_address(each).packed))
        for each in (address, *mapped)
    ]


_REACHED_BY_LOOPBACK = frozenset(form for each in ("127.0.0.1", "0.0.0.0", "::1", "::") for form in _forms(each))
