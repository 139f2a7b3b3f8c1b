"""A user's own machine: another host name, and a network of its own whose loopback is not the host's."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from ipaddress import ip_address
from pathlib import Path

#: the name of the machine with the device, wherever this thread is meanwhile
HOST = socket.gethostname()
NAME = "laptop"
_KINDS = ("net", "uts")
_CLONE_NEWNET, _CLONE_NEWUTS = 0x40000000, 0x04000000
#: networks of four addresses each, in the range that is for tests
_FIRST_NETWORK, _NUM_NETWORKS = ip_address("198.18.0.0"), 1 << 15


class Laptop:
    """Namespaces with a cable to the host, which end with the processes there; this thread is there within ``with``.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        When this account may make none.
    """

    def __init__(self) -> None:
        self._outside = _open_namespaces()
        _call("unshare", _CLONE_NEWNET | _CLONE_NEWUTS)
        self._inside = _open_namespaces()
        # no other namespace that is there has the same
        number = os.fstat(self._inside[0]).st_ino
        address = _FIRST_NETWORK + 4 * (number % _NUM_NETWORKS) + 1
        #: the host's, at the other end of the cable
        self.host_address = str(address)
        host_end = f"sk{number}"
        with self:
            socket.sethostname(NAME)
            outside = f"/proc/{os.getpid()}/fd/{self._outside[0]}"
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "eth0", "type", "veth", "peer", "name", host_end, "netns", outside)
            _ip("address", "add", f"{address + 1}/30", "dev", "eth0")
            _ip("link", "set", "eth0", "up")
        _ip("address", "add", f"{address}/30", "dev", host_end)
        _ip("link", "set", host_end, "up")

    def __enter__(self) -> None:
        _enter(self._inside)

    def __exit__(self, *_: object) -> None:
        _enter(self._outside)

    def close(self) -> None:
        """Let them end."""
        for descriptor in (*self._inside, *self._outside):
            os.close(descriptor)

    def wrapped(self, program: str, directory: Path) -> Path:
        """Return a script in *directory* that runs *program* there, whoever calls it."""
        places = (f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._inside)
        options = " ".join(f"--{kind}={place}" for kind, place in zip(_KINDS, places, strict=True))
        script = directory / Path(program).name
        script.write_text(f'#!/bin/sh\nexec nsenter {options} {program} "$@"\n')
        script.chmod(0o755)
        return script


def _open_namespaces() -> list[int]:
    """Return descriptors of this thread's namespaces, which keep them."""
    return [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in _KINDS]


def _enter(namespaces: list[int]) -> None:
    for descriptor in namespaces:
        _call("setns", descriptor, 0)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
