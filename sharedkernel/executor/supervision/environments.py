"""The Python environments that sessions can have, and the build ids of the code that runs in them.

There is the executor's own environment, and those that the admin names. Each has a warm parent of its own, since a fork
has the modules of what it was forked from.

A build id names the code that a process runs, which an executor has to know before it goes on with one it finds:
sessions and warm parents outlive executors, and so an upgrade. Who starts a warm parent says of which code it is on its
command line, where every later executor can read it; what sessions were forked from is in their records. Another
version of the control protocol cannot be taken over at all (:func:`check_left`); other code of the same protocol can,
and new sessions come from a new warm parent (`warm_parents.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sharedkernel._version import __version__
from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError
from sharedkernel.executor.processes.process import start_time
from sharedkernel.executor.processes.records import newest_data
from sharedkernel.ipc.helper_process import scrubbed_environment
from sharedkernel.ipc.seqpacket import connect
from sharedkernel.paths import RECORDS_DIRECTORY, RETIRED_SOCKETS, WARM_PARENT_SOCKET, WARM_PARENT_SOCKETS
from sharedkernel.protocol import PROTOCOL_VERSION, UNREADABLE, FromWarmParent

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
#: that says of a helper or session that it is not there; any other OSError only that nobody can look
_GONE = (FileNotFoundError, ProcessLookupError, ConnectionRefusedError)


def process_build_id(pid: int) -> str:
    """Return the build id of a warm parent: the last word of its command line.

    Raises
    ------
    OSError
        When it has ended.
    """
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    if not words[0]:  # it waits to be reaped
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return os.fsdecode(words[-1])


def listener_of(path: Path) -> int:
    """Return the id of the warm parent that listens at *path*; nothing is said to it.

    Raises
    ------
    OSError
        When there is none.
    """
    with contextlib.closing(connect(str(path), FromWarmParent)) as connection:
        return connection.peer().pid


def own_folders() -> list[str]:
    """Return where the processes that this one starts with its own Python import from."""
    return sys.path[0 if sys.flags.safe_path else 1 :]  # the first is this script's folder, or the working directory


def folders_build_id(folders: Sequence[str]) -> str:
    """Return the build id of what is imported from *folders* now: ``PROTOCOL/VERSION/FINGERPRINT``.

    The fingerprint changes with whatever is installed beside this package, and with each of its files.

    Parameters
    ----------
    folders
        As `sys.path` has them, in an environment whose sharedkernel speaks this one's protocol.
    """
    digest = hashlib.sha256()
    package = None
    for folder in map(Path, folders):
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(folder))
            digest.update("\0".join(name for name in names if name.endswith((".dist-info", ".egg-info"))).encode())
        if package is None and (folder / "sharedkernel" / "__init__.py").is_file():
            package = folder / "sharedkernel"
    if package is not None:  # its version stays the same where it is installed to be edited
        for path in sorted(package.rglob("*.py")):
            with contextlib.suppress(OSError):  # it is just being installed, or edited
                found = path.stat()
                digest.update(f"{path.relative_to(package)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return f"{PROTOCOL_VERSION}/{__version__}/{digest.hexdigest()[:16]}"


def check_left(directory: Path) -> None:
    """Make sure that what earlier executors left in *directory* can be taken over; nothing is changed.

    Raises
    ------
    ConfigError
        When it speaks another version of the control protocol, or nobody can look now, with what to do.
    """
    try:
        builds = (*_helpers_builds(directory), *_sessions_builds(directory / RECORDS_DIRECTORY))
    except OSError as error:
        raise ConfigError(
            f"cannot see which sessions an earlier executor left in {directory} ({error.strerror}), so none is taken "
            "over; they are unharmed. Start it again once that is mended."
        ) from None
    for build in builds:
        protocol, version, *_ = [*build.split("/"), ""]
        if protocol != str(PROTOCOL_VERSION):
            left = f"{version} (control protocol {protocol})" if protocol.isdigit() else "of another control protocol"
            raise ConfigError(
                f"the sessions in {directory} run on sharedkernel {left}, which {__version__} (control protocol "
                f"{PROTOCOL_VERSION}) cannot take over; they are unharmed. Install that version again and start its "
                "executor: they go on, or end with it if it is started with --end-sessions-on-exit and stopped."
            )


def _helpers_builds(directory: Path) -> Iterator[str]:
    for pattern in (WARM_PARENT_SOCKETS, RETIRED_SOCKETS):
        for path in directory.glob(pattern):
            with contextlib.suppress(*_GONE, BlockingIOError):  # of one that hangs, see `warm_parents.py`
                yield process_build_id(listener_of(path))


def _sessions_builds(directory: Path) -> Iterator[str]:
    """Yield those of live sessions by their records, of which every version can read this much."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        with contextlib.suppress(*_GONE, KeyError, TypeError, *UNREADABLE):
            record = msgspec.msgpack.decode(newest_data(directory / name))
            if start_time(record["pid"]) == record["started"]:
                yield str(record.get("stamp"))


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
        if self.name == OWN:
            return WARM_PARENT_SOCKET
        return f"warm-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}.sock"


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
