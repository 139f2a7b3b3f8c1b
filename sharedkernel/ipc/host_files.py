"""Two small files of the runtime directory, by which a host's gateway and its cluster's agent tell each other of it.

Each file is replaced every few seconds; one that is older than :data:`FRESH` is what somebody said who is gone since.
Neither process waits for the other, or needs to be there.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: seconds after which a file's writer counts as gone
FRESH = 15.0
#: most bytes that are read
_MAX_BYTES = 64 * 1024


class HostState(msgspec.Struct, kw_only=True):
    """The gateway's report on its host."""

    name: str
    version: str
    #: such as ``cuda:1``
    devices: list[str] = []
    num_sessions: int = 0
    #: whether it gets no new sessions, and nobody has anything there any more that it waits for
    is_cordoned: bool = False
    is_drained: bool = False


class AgentState(msgspec.Struct, kw_only=True):
    """The agent's report to the gateway, after each answer of the cluster's directory."""

    #: whether the agent found the host's services running, rather than starting them
    has_adopted: bool = False


HOST_STATE, AGENT_STATE = "host-state.json", "agent-state.json"
_State = TypeVar("_State", HostState, AgentState)


def write_state(directory: Path, name: str, state: HostState | AgentState) -> None:
    """Replace the file *name* in *directory*; a failure is logged, since nothing depends on it."""
    try:
        replace_file(directory / name, msgspec.json.encode(state), mode=0o644, durable=False)
    except OSError as error:
        log.debug("%s cannot be written (%s)", directory / name, error.strerror)


def read_state(directory: Path, name: str, kind: type[_State]) -> tuple[_State | None, bool]:
    """Return what the file *name* in *directory* says, and whether its writer was there just now.

    Returns
    -------
    state
        None if there is no such file, or it cannot be read.
    is_fresh
        Whether it was written within the last :data:`FRESH` seconds.
    """
    try:
        with (directory / name).open("rb") as file:
            data = file.read(_MAX_BYTES)
            age = time.time() - (directory / name).stat().st_mtime
        return msgspec.json.decode(data, type=kind), age < FRESH
    except (OSError, ValueError):
        return None, False
