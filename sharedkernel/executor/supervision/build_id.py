"""The build id: names the code that a process runs, which an executor has to know before it goes on with one it finds.

Sessions and warm parents outlive executors, and so an upgrade. Who starts a warm parent says of which code it is on its
command line, where every later executor can read it; what sessions were forked from is in their
records. Another version of the control protocol cannot be taken over at all (:func:`check_left`); other code of the
same protocol can, and new sessions come from a new warm parent (`warm_parents.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sharedkernel._version import __version__
from sharedkernel.errors import ConfigError
from sharedkernel.executor.processes.process import start_time
from sharedkernel.executor.processes.records import newest_data
from sharedkernel.ipc.seqpacket import connect
from sharedkernel.paths import RECORDS_DIRECTORY, RETIRED_SOCKETS, WARM_PARENT_SOCKETS
from sharedkernel.protocol import PROTOCOL_VERSION, UNREADABLE, FromWarmParent

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
    connection = connect(str(path), FromWarmParent)
    try:
        return connection.peer().pid
    finally:
        connection.close()


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
