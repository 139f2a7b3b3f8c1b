"""The arguments of a relay: its command line, and the connection file that the client writes for its kernel."""

from __future__ import annotations

import json

from sharedkernel.client.relay.start import SOCKETS
from sharedkernel.errors import ConfigError


class Options:
    """A relay's command line.

    Parameters
    ----------
    connection_file
        Path of what the Jupyter client wrote.
    name
        Kernelspec whose gateway and token are used; None: the usual one.
    environment
        The gateway's Python environment; empty: its usual one.
    listening
        Descriptors of the sockets that listen for the client already, separated by commas; see `start.py`.
    """

    def __init__(
        self, connection_file: str, name: str | None = None, environment: str = "", listening: str = ""
    ) -> None:
        self.connection_file = connection_file
        self.name = name
        self.environment = environment
        descriptors = [int(descriptor) for descriptor in listening.split(",") if descriptor]
        #: by the socket's name
        self.listeners = dict(zip(SOCKETS, descriptors, strict=False))


class ConnectionInfo:
    """The content of a connection file.

    Parameters
    ----------
    transport
        "tcp" or "ipc".
    ip
        Where to listen.
    ports
        By channel, with the heartbeat's ("hb").
    key, signature_scheme
        How messages are signed.
    """

    __slots__ = ("ip", "key", "ports", "signature_scheme", "transport")

    def __init__(self, *, transport: str, ip: str, ports: dict[str, int], key: bytes, signature_scheme: str) -> None:
        self.transport = transport
        self.ip = ip
        self.ports = ports
        self.key = key
        self.signature_scheme = signature_scheme

    @classmethod
    def from_file(cls, path: str) -> ConnectionInfo:
        """Read a connection file.

        Raises
        ------
        ConfigError
            When it cannot be used.
        """
        try:
            with open(path, encoding="utf-8") as file:
                info = json.load(file)
            connection = cls(
                transport=info.get("transport", "tcp"),
                ip=info["ip"],
                ports={name: int(info[f"{name}_port"]) for name in SOCKETS},
                key=info.get("key", "").encode(),
                signature_scheme=info.get("signature_scheme", "hmac-sha256"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not a connection file ({type(error).__name__}: {error}).") from None
        if connection.transport not in ("tcp", "ipc"):
            raise ConfigError(f"{path} asks for the transport {connection.transport!r}; tcp and ipc are known.")
        return connection

    def address(self, name: str) -> str:
        """Return where the socket *name* is bound."""
        separator = ":" if self.transport == "tcp" else "-"
        return f"{self.transport}://{self.ip}{separator}{self.ports[name]}"
