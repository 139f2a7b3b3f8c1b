"""Start a session's process afresh, for what has to be there before torch is imported.

Sessions are forked from a process that has imported torch: for ``PYTORCH_JIT`` and its like it is too late then, as
for other versions of packages. Where a client asks for such variables (``KERNEL_ENV_PYTORCH_JIT=0``), or its user has
such packages (:mod:`sharedkernel.session.kernel.packages`), the process that was assigned to its session replaces
itself by a new interpreter, before anybody has connected to it. It keeps its process id, its parent, its limits, its
shared page and its connection file, so that nobody else notices: to its executor it is a session that connects again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import NoReturn

from sharedkernel import protocol

#: runs a session's module with a folder before the environment's packages, as Python has them: behind its own modules
_WITH_PACKAGES = """
import runpy, sys
from importlib.machinery import PathFinder
folder, without = sys.argv.pop(1), sys.argv.pop(1).split(",")
class Shared:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [p for p in sys.path if p != folder]) if name in without else None
sys.meta_path.insert(0, Shared)
shared = (place for place, path in enumerate(sys.path) if path.endswith("site-packages"))
sys.path.insert(next(shared, len(sys.path)), folder)
runpy.run_module("sharedkernel.session", run_name="__main__", alter_sys=True)
"""
#: begins the names of variables that a client asks for
PREFIX = "KERNEL_ENV_"


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments that a session's process was started with."""

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


def start_afresh(
    launch: Launch, assign: protocol.Assign, packages: str = "", without: Collection[str] = ()
) -> NoReturn:
    """Replace this process by one that serves *assign*, with the variables that its client has asked for.

    Parameters
    ----------
    launch
        Of this process.
    assign
        The session.
    packages
        A folder whose modules go before those of the environment; empty: there is none.
    without
        Modules that do not.
    """
    message = os.memfd_create("sharedkernel-assign", 0)
    os.write(message, protocol.encode(assign))
    os.lseek(message, 0, os.SEEK_SET)
    os.set_inheritable(launch.page_descriptor, True)
    for output in (1, 2):  # to its log again, and not to the notebook by way of this process
        os.dup2(launch.log_descriptor, output)
    arguments = [json.dumps(asdict(launch)), str(message)]
    environment = {**os.environ, **asked_variables(assign.env)}
    module = ["-c", _WITH_PACKAGES, packages, ",".join(without)] if packages else ["-m", "sharedkernel.session"]
    os.execve(sys.executable, [sys.executable, *module, *arguments], environment)
