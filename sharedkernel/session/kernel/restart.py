"""Start a session's process afresh, for variables that are read when torch is imported.

Sessions are forked from a process that has imported torch: for ``PYTORCH_JIT`` and its like it is too late then. Where
a client asks for such variables (``KERNEL_ENV_PYTORCH_JIT=0``), the process that was assigned to its session replaces
itself by a new interpreter, before anybody has connected to it. It keeps its process id, its parent, its limits, its
shared page and its connection file, so that nobody else notices: to its executor it is a session that connects again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from sharedkernel import protocol

#: begins the names of variables that a client asks for
PREFIX = "KERNEL_ENV_"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a session's process was started with."""

    #: its name, given by the executor
    process: str
    connection_file: str
    executor_socket: str
    #: of the page shared with the executor
    page_descriptor: int
    device_kind: str
    #: how it has memory on a GPU, as `device_memory/mode.py` has it
    memory_mode: str = "shared"
    #: how users are kept apart, as `executor/isolation/policy.py` has it
    isolation: str = "none"
    #: of its log
    log_descriptor: int = -1


def asked_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a session is to start with, of those that its client sent."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name != PREFIX
    }


def start_afresh(launch: Launch, assign: protocol.Assign) -> NoReturn:
    """Replace this process by one that serves *assign*, with the variables that its client has asked for."""
    message = os.memfd_create("sharedkernel-assign", 0)
    os.write(message, protocol.encode(assign))
    os.lseek(message, 0, os.SEEK_SET)
    os.set_inheritable(launch.page_descriptor, True)
    for output in (1, 2):  # to its log again, and not to the notebook by way of this process
        os.dup2(launch.log_descriptor, output)
    arguments = [
        launch.process, launch.connection_file, launch.executor_socket, str(launch.page_descriptor),
        launch.device_kind, launch.memory_mode, launch.isolation, str(message),
    ]  # fmt: skip
    environment = {**os.environ, **asked_variables(assign.env)}
    os.execve(sys.executable, [sys.executable, "-m", "sharedkernel.session", *arguments], environment)
