"""The Python environments that sessions can have: the executor's own, and those that the admin names.

Each has a warm parent of its own, since a fork has the modules of what it was forked from.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.executor.supervision.build_id import folders_build_id, own_folders
from sharedkernel.ipc.helper_process import scrubbed_environment
from sharedkernel.paths import WARM_PARENT_SOCKET
from sharedkernel.protocol import PROTOCOL_VERSION

#: name of the executor's own environment
OWN = ""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: seconds that an interpreter may take to say what it has
_PATIENCE = 60.0
#: run by an environment's interpreter: prints what it has and lacks
_LOOK = """
import json, sys
sys.path.pop(0)  # the working directory
from importlib.util import find_spec
needed = "torch", "ipykernel", "msgspec", "setproctitle", "sharedkernel"
missing = [name for name in needed if find_spec(name) is None]
protocol, stranger = None, False
if not missing:
    try:
        from sharedkernel.protocol import PROTOCOL_VERSION as protocol
    except ImportError:
        stranger = True
print(json.dumps({"missing": missing, "stranger": stranger, "protocol": protocol, "path": sys.path}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One environment."""

    #: empty: the executor's own
    name: str
    #: path of its interpreter
    python: str
    #: where it imports from
    folders: tuple[str, ...]
    #: of what its sessions run
    build_id: str

    @property
    def socket(self) -> str:
        """Name of its warm parent's socket in the runtime directory; short, as sockets' paths must be."""
        return (
            WARM_PARENT_SOCKET
            if self.name == OWN
            else f"warm-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}.sock"
        )


def own_environment() -> Environment:
    """Return the environment that this process runs in."""
    return Environment(
        name=OWN, python=sys.executable, folders=tuple(sys.path), build_id=folders_build_id(own_folders())
    )


def open_environments(pythons: Mapping[str, str]) -> dict[str, Environment]:
    """Return all environments by name, the executor's own among them, seen to be usable.

    Parameters
    ----------
    pythons
        Paths of interpreters by the names of their environments.

    Raises
    ------
    ConfigError
        When one is not, with what to do about it.
    """
    return {OWN: own_environment(), **{name: _open(name, python) for name, python in pythons.items()}}


def _open(name: str, python: str) -> Environment:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be an environment's name; use letters, digits, '.', '_' and '-'.")
    try:
        done = subprocess.run(
            [python, "-c", _LOOK],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env=scrubbed_environment(python),
            timeout=_PATIENCE,
        )
        found = json.loads(done.stdout)
    except OSError as error:
        raise ConfigError(f"the environment {name} has no interpreter {python} ({error.strerror}).") from None
    except (subprocess.SubprocessError, ValueError):
        raise ConfigError(f"{python} of the environment {name} does not run as Python.") from None
    pip = f"{python} -m pip"
    if found["stranger"]:
        raise ConfigError(
            f"the environment {name} has a package sharedkernel that is not this one; "
            f"run `{pip} uninstall sharedkernel`, then {install_hint('host', pip=pip)}."
        )
    if found["missing"]:
        raise ConfigError(
            f"the environment {name} lacks {', '.join(found['missing'])}; run {install_hint('host', pip=pip)}."
        )
    if found["protocol"] != PROTOCOL_VERSION:
        raise ConfigError(f"the environment {name} has another version of sharedkernel; install the same one there.")
    folders = tuple(found["path"])
    return Environment(name=name, python=python, folders=folders, build_id=folders_build_id(folders))
