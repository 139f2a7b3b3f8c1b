"""The connection file that a client writes for its kernel."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sharedkernel.client.relay.start import SOCKETS
from sharedkernel.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ConnectionInfo:
    """The content of a connection file."""

    #: "tcp" or "ipc"
    transport: str
    #: where to listen
    ip: str
    #: by channel, with the heartbeat's ("hb")
    ports: dict[str, int]
    #: how messages are signed
    key: bytes
    signature_scheme: str
    #: descriptors of the sockets that listen there already, by name
    listeners: dict[str, int]

    @classmethod
    def from_file(cls, path: str, listening: str = "") -> ConnectionInfo:
        """Read a connection file.

        Parameters
        ----------
        path
            Of the file.
        listening
            Descriptors as `start.py` gives them, separated by commas; empty: none listens yet.

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
                listeners=dict(zip(SOCKETS, map(int, filter(None, listening.split(","))), strict=False)),
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
