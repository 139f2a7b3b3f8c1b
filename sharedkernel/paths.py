"""Where the processes of one host find each other: the runtime directory and the names in it.

Everything in it belongs to one user and is closed to all others (0700); names are short because a unix socket's
path holds at most 107 bytes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sharedkernel.errors import ConfigError

EXECUTOR_SOCKET = "executor.sock"
KEEPER_SOCKET = "keeper.sock"
WARM_PARENT_SOCKET = "warm.sock"
#: connection files and ipc sockets of the sessions
SESSIONS_DIRECTORY = "s"
#: logs of the executor's processes and sessions
LOGS_DIRECTORY = "logs"
#: most bytes of a runtime directory's path: a session's sockets add 21, and a unix socket's path holds 107
LONGEST_RUNTIME_DIRECTORY = 86


def default_runtime_directory() -> Path:
    """Return the runtime directory used when none is named."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "sharedkernel"
    return Path(f"/tmp/sharedkernel-{os.getuid()}")


def make_private_directory(path: Path) -> Path:
    """Create *path* (0700) if it is not there, and make sure that it is ours alone.

    Raises
    ------
    ConfigError
        When it is a link, no directory, another user's, or open to others.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is not a directory; remove it or name another with --runtime-dir.")
    if found.st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to another user; name another directory with --runtime-dir.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"{path} is open to other users; run `chmod 700 {path}` or name another directory.")
    return path
