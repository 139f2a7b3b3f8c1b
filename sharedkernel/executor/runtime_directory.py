"""The runtime directory while an executor serves from it: locked, private, and of a version that can be taken over."""

from __future__ import annotations

import os
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.supervision.build_id import check_left
from sharedkernel.paths import (
    LOGS_DIRECTORY,
    LONGEST_RUNTIME_DIRECTORY,
    SESSIONS_DIRECTORY,
    make_private_directory,
)
from sharedkernel.system.lock_file import lock_directory


class RuntimeDirectory:
    """One executor's hold on its directory, made if it is missing.

    Parameters
    ----------
    path
        Where all processes of the executor meet.
    isolation
        How users are kept apart.

    Raises
    ------
    ConfigError
        When it cannot be used, another executor serves it, or what is in it speaks another version.
    """

    def __init__(self, path: Path, isolation: Isolation) -> None:
        if len(os.fsencode(path)) > LONGEST_RUNTIME_DIRECTORY:
            raise ConfigError(
                f"{path} is too long a path for sockets; name one of at most {LONGEST_RUNTIME_DIRECTORY} "
                "characters with --runtime-dir."
            )
        self.path = path
        if not isolation.uses_accounts:  # or sessions pass through it
            make_private_directory(path)
        self._lock_descriptor = lock_directory(path)
        check_left(path)
        make_private_directory(path / LOGS_DIRECTORY)
        isolation.make_sessions_directory(path / SESSIONS_DIRECTORY)

    def release(self) -> None:
        """Let another executor serve it."""
        os.close(self._lock_descriptor)
