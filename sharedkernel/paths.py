"""The runtime directory, where the processes of one host find each other, and the state directory, which outlives it.

Everything in the runtime directory belongs to one user and is closed to all others (0700); names are short because a
unix socket's path holds at most 107 bytes.

Each executor has a runtime directory of its own. The first device's is the one that the gateway was given, so that
where there is one device, there is one directory; every other device's is a subdirectory named by the device
(:func:`device_directory`). A device's directory follows from its name alone, in whatever order the executors start.

A runtime directory may be emptied by a reboot. What has to outlive that, such as the audit log and users' totals, is in
the state directory (:func:`make_state_directory`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

from sharedkernel.errors import ConfigError

log = logging.getLogger(__name__)

EXECUTOR_SOCKET = "executor.sock"
#: where sessions and their executor exchange descriptors of memory
DESCRIPTOR_SOCKET = "memory.sock"
WARM_PARENT_SOCKET = "warm.sock"
#: patterns of the sockets of all warm parents, and of those that fork no more since they are of other code
WARM_PARENT_SOCKETS, RETIRED_SOCKETS = "warm*.sock", "old-*.sock"
#: connection files and ipc sockets of the sessions
SESSIONS_DIRECTORY = "s"
#: sockets and locks of users' own servers, in the runtime directory that all executors of a host share
SERVERS_DIRECTORY = "u"
#: the sessions' records
RECORDS_DIRECTORY = "records"
#: records of programs that are stopped between their sessions' turns
STOPPED_DIRECTORY = "stopped"
#: users' shelves, among their homes or in the state directory; names their files in `/proc/PID/maps`
SHELF_DIRECTORY = ".sharedkernel-shelf"
#: files of a gateway whose account is not the executor's
GATEWAY_DIRECTORY = "gateway"
#: logs of the executor's processes and sessions
LOGS_DIRECTORY = "logs"
#: variable that names a directory for memory that is moved away
OFFLOAD_VARIABLE = "SHAREDKERNEL_OFFLOAD_DIR"
#: names of a host's first device: its executor uses the runtime directory itself
FIRST_DEVICES = ("host", "cuda", "cuda:0")
_NUMBER = "(0|[1-9][0-9]*)"
_DEVICE = re.compile(rf"(host|cuda)(:{_NUMBER})?|cuda:{_NUMBER}:{_NUMBER}|(GPU|MIG)-[0-9a-fA-F-]+")
#: most bytes of a runtime directory's path: a session's sockets add 21, and a unix socket's path holds 107
LONGEST_RUNTIME_DIRECTORY = 86


def default_runtime_directory() -> Path:
    """Return the runtime directory used when none is named."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "sharedkernel"
    return Path(f"/tmp/sharedkernel-{os.getuid()}")


def device_directory(runtime_directory: Path, device: str) -> Path:
    """Return where the executor of *device*, such as ``host:1``, meets the gateway of *runtime_directory*."""
    return runtime_directory if device in FIRST_DEVICES else runtime_directory / device.replace(":", "-")


def parse_devices(value: Any) -> tuple[str, ...]:
    """Return the devices of the setting `executors`, or of `--devices`, if they can be used together.

    Parameters
    ----------
    value
        A list of names, or one text with commas between them, as a command line has it.

    Raises
    ------
    ConfigError
        When they cannot.
    """
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"executors is {value!r}; write a list of devices, such as ['cuda:0', 'cuda:1'].")
    for device in value:
        if not (isinstance(device, str) and _DEVICE.fullmatch(device)):
            raise ConfigError(f"executors names {device!r}; write 'cuda:N', 'cuda:N:M' or 'host:N', as in --device.")
        if value.count(device) > 1:
            raise ConfigError(f"executors names {device!r} twice; a device has one executor.")
    first = [device for device in value if device in FIRST_DEVICES]
    if len(first) > 1:
        raise ConfigError(
            f"executors names {' and '.join(map(repr, first))}, whose executors would have the same runtime directory; "
            "give the host a number, as in 'host:1', and name a GPU once."
        )
    return tuple(value)


def gateway_directory(runtime_directory: Path) -> Path:
    """Return where this account's gateway of *runtime_directory* keeps its files.

    It is *runtime_directory* itself, unless an executor of root's has made a directory for this account in it.
    """
    own = runtime_directory / GATEWAY_DIRECTORY
    try:
        return own if own.lstat().st_uid == os.getuid() != runtime_directory.stat().st_uid else runtime_directory
    except OSError:
        return runtime_directory


def make_state_directory(named: str, runtime_directory: Path, fallback: Path, device: str = "host") -> Path:
    """Make the directory for what outlives a reboot, if it is not there, and return it.

    Parameters
    ----------
    named
        By the option ``--state-dir``; "": the default one of *runtime_directory*.
    runtime_directory
        The gateway's.
    fallback
        What is returned, with a warning in the log, where the default one cannot be used.
    device
        The executor's; the gateway's directory is the first device's.

    Raises
    ------
    ConfigError
        When the directory that was named cannot be used.
    """
    places = [Path(named).expanduser()] if named else _default_state_directories(runtime_directory)
    places.append(device_directory(places[-1], device))
    try:
        for path in dict.fromkeys(places):
            make_private_directory(path, named_by="--state-dir")
    except ConfigError as error:
        if named:
            raise
        log.warning("%s Until then, what should outlive a reboot is in %s.", error, fallback)
        return fallback
    return places[-1]


def _default_state_directories(runtime_directory: Path) -> list[Path]:
    """Return the state directory of *runtime_directory* where none is named, after the one that it is in."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sharedkernel"
    except RuntimeError:  # an account without a home
        return [runtime_directory]
    if runtime_directory == default_runtime_directory():
        return [base]
    return [base, base / "-".join(runtime_directory.absolute().parts[1:])]  # each has one of its own


def shelf_directory(named: str, homes: Path | None, state: Path | None, runtime_directory: Path) -> Path:
    """Return where the shelves of one executor are: on no file system that is memory, so that they outlive a reboot.

    Parameters
    ----------
    named
        By the option ``--shelf-dir``; "": among the homes, or in the state directory.
    homes
        Of users, if they have homes of their own.
    state
        The executor's; None: it has none that outlives a reboot.
    runtime_directory
        The executor's.
    """
    # each has shelves of its own
    own = "-".join(part.replace("%", "%25").replace("-", "%2D") for part in runtime_directory.absolute().parts[1:])
    if named:
        return Path(named).expanduser() / SHELF_DIRECTORY / own
    if homes is not None:
        return homes / SHELF_DIRECTORY / own
    return (state or Path(f"/var/tmp/sharedkernel-{os.getuid()}-{own}")) / SHELF_DIRECTORY


def subdirectories_served(runtime_directory: Path) -> list[Path]:
    """Return the subdirectories in which executors listen, or did when they were killed."""
    return sorted(path.parent for path in runtime_directory.glob(f"*/{EXECUTOR_SOCKET}"))


def only_executor_directory(runtime_directory: Path) -> Path:
    """Return where the only executor of *runtime_directory* is, whichever device it serves.

    It is *runtime_directory* itself unless nothing listens there and in exactly one of its subdirectories.
    """
    found = subdirectories_served(runtime_directory)
    at_home = (runtime_directory / EXECUTOR_SOCKET).exists() or len(found) != 1
    return runtime_directory if at_home else found[0]


def offload_directory() -> Path:
    """Return where sessions put memory that is moved away from the host device.

    Best a disk of its own; not memory. `SHAREDKERNEL_OFFLOAD_DIR` names another.
    """
    named = os.environ.get(OFFLOAD_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharedkernel" / "offload"


def log_name(process: str) -> str:
    """Return the name of the log of a session's process: in the logs' directory, or in one of its user's."""
    return f"session-{process}.log"


def make_private_directory(path: Path, *, named_by: str = "--runtime-dir", or_roots: bool = False) -> Path:
    """Create *path* (0700) if it is not there, and make sure that it is ours alone.

    Others may pass through it, where sessions run under accounts of their own, but neither list it nor write to it.

    Parameters
    ----------
    path
        Of the directory.
    named_by
        The option or variable that errors tell to name another with.
    or_roots
        Whether root may have made it, for several users to meet in.

    Raises
    ------
    ConfigError
        When it is a link, no directory, another user's, or open to others, or cannot be made.
    """
    try:
        with contextlib.suppress(FileExistsError):  # whatever it is, it is looked at below
            path.mkdir(mode=0o700, parents=True)
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made ({error.strerror}); name another with {named_by}.") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is not a directory; remove it or name another with {named_by}.")
    if found.st_uid != os.getuid() and not (or_roots and found.st_uid == 0):
        raise ConfigError(f"{path} belongs to another user; name another directory with {named_by}.")
    if stat.S_IMODE(found.st_mode) & 0o066:
        raise ConfigError(
            f"{path} is open to other users; run `chmod 700 {path}` or name another directory with {named_by}."
        )
    return path
