"""Names that the gateway, its clients and the Jupyter server agree on: of kernels, users, headers and parameters."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import platform
import re
from pathlib import Path

#: what sessions are called on every gateway, whatever the local kernelspec's name
KERNEL_NAME = "shared-gpu"
#: what launchers show
DISPLAY_NAME = "Shared GPU (PyTorch)"
#: names the host of a session in its environment, where there are several
HOST_VARIABLE = "KERNEL_SHAREDKERNEL_HOST"
#: JupyterLab's name of the drive with the user's files on the gateway's host
DRIVE = "gpu-host"
#: tells a relay the folder of a notebook on that drive, below the user's home there
FOLDER_VARIABLE = "KERNEL_SHAREDKERNEL_FOLDER"
#: folder of the kernel's logos
LOGOS = Path(__file__).parent / "kernelspec"
#: what the message sessions of relays begin with, and the gateway's for them: what they say themselves is no session's
RELAY = "relay"
#: parameter of a websocket's address: ids of the last messages that the client has seen, separated by commas. In the
#: content of a kernel_info_request to a relay that was started again: their headers, in JSON
SEEN = "seen"
#: likewise, from a relay that takes the place of another one: a name that no other has
SUCCESSOR = "successor"
#: header of the answer to a websocket's request: names the session's process, so that a client notices another one. A
#: client that sends it, too, means that one with all that it says there: nothing of it reaches the process after it
PROCESS_HEADER = "X-SharedKernel-Process"
#: what the client sends
SAME_PROCESS = "same"
#: in the content of a status "restarting": nothing has died, the user has an earlier session back
ATTACHED = "attached"
#: in the content of a status "dead": nothing has died, somebody has ended the session or shut it down
ENDED = "ended"
#: exit code of a relay whose session is dead for good; its client starts another one
SESSION_DIED = 3
#: in the answer to a request for a session: the client has had this one before
EXISTING = "existing"
#: the gateway's framing of messages on the websocket
WEBSOCKET_PROTOCOL = "v1.kernel.websocket.jupyter.org"


def is_user_name(name: str) -> bool:
    """Whether *name* is a valid user name: short and plain, since logs, status and metrics contain it."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", name) is not None


def kernel_of(environment: str) -> str:
    """Return the name of the kernel whose sessions have the Python environment *environment*; empty: the usual one."""
    return f"{KERNEL_NAME}-{environment}" if environment else KERNEL_NAME


def environment_of(name: str) -> str | None:
    """Return the Python environment of the kernel *name*; None if it is no kernel of ours."""
    if name == KERNEL_NAME:
        return ""
    prefix = f"{KERNEL_NAME}-"
    return name.removeprefix(prefix) if name.startswith(prefix) and name != prefix else None


def client_key(connection_file: Path, key: bytes) -> str:
    """Return the name by which gateways know one notebook's place on this machine.

    A program with the connection file can find the session of a kernel by this name. It does not reveal the secret.

    Parameters
    ----------
    connection_file, key
        Path and secret of the client's connection file.
    """
    place = f"{platform.node()}\0{connection_file.resolve()}".encode()
    return hmac.new(key, place, hashlib.sha256).hexdigest()


def machine_digest() -> str:
    """Return a digest of the machine, or of the container, that this process runs in: 64 hexadecimal digits.

    Processes with the same one have the same kernel, host name and root folder, so they see the same files; nothing of
    the machine can be learned from it.
    """
    parts = [platform.node()]
    with contextlib.suppress(OSError):  # no Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        root = os.stat("/")
        parts.append(f"{root.st_dev}:{root.st_ino}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
