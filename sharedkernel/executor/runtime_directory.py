"""The runtime directory while an executor serves from it: locked, private, and of a version that can be taken over.

No log in it grows without bound, and few are left of sessions that ended. Sessions under users' own accounts leave
their log there when they become their user (`session/kernel/own_log.py`), so what a user writes is never in it. At
other levels a session could write there at any speed: the bound is for faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Container
from pathlib import Path

from sharedkernel.errors import ConfigError, Refused
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.supervision.environments import check_left
from sharedkernel.paths import (
    DESCRIPTOR_SOCKET,
    EXECUTOR_SOCKET,
    LOGS_DIRECTORY,
    LONGEST_RUNTIME_DIRECTORY,
    RECORDS_DIRECTORY,
    SESSIONS_DIRECTORY,
    log_name,
    make_private_directory,
)
from sharedkernel.system.atomic_file import closing_descriptor
from sharedkernel.system.lock_file import EXECUTOR_LOCK, lock_directory

log = logging.getLogger(__name__)

#: bytes of a log above which only its end is kept, and how much of that
MOST_LOG_BYTES, KEPT_LOG_BYTES = 4 << 20, 64 << 10
#: logs of sessions that ended by themselves; the oldest of more are removed
MOST_OLD_LOGS = 32


class RuntimeDirectory:
    """One executor's hold on its directory, made if it is missing.

    Parameters
    ----------
    path
        Where all processes of the executor meet.
    isolation
        How users are kept apart.
    on_restored
        Puts into a directory that was made anew what the executor has there.

    Raises
    ------
    ConfigError
        When it cannot be used, another executor serves it, or what is in it speaks another version.
    """

    def __init__(self, path: Path, isolation: Isolation, on_restored: Callable[[], Awaitable[None]]) -> None:
        if len(os.fsencode(path)) > LONGEST_RUNTIME_DIRECTORY:
            raise ConfigError(
                f"{path} is too long a path for sockets; name one of at most {LONGEST_RUNTIME_DIRECTORY} "
                "characters with --runtime-dir."
            )
        self.path = path
        self._isolation = isolation
        self._on_restored = on_restored
        self._checking = asyncio.Lock()
        #: why it could not be made anew, as last logged
        self._trouble: str | None = None
        if not isolation.uses_accounts:  # or sessions pass through it
            make_private_directory(path)
        self._lock_descriptor = lock_directory(path)
        check_left(path)
        self._make_subdirectories()

    async def check(self) -> None:
        """Return once the directory is as it has to be; called before each start, and now and then.

        Raises
        ------
        Refused
            When it cannot be made anew, with what to do: no session could start.
        """
        async with self._checking:
            try:
                if self._is_whole():
                    return
                self._restore()
                await self._on_restored()
            except (ConfigError, OSError) as error:
                why = f"the runtime directory {self.path} is gone, and nothing starts without it: {error}"
                if why != self._trouble:
                    log.error("%s", why)
                self._trouble = why
                raise Refused(f"{why.rstrip('.')}; tell the administrator of this machine.", reason="start") from None
            self._trouble = None
            log.error(
                "the runtime directory %s was removed or changed; it is made anew, and new notebooks start. Those that "
                "run go on, but no other gateway reaches them: leave this one running until their users have saved.",
                self.path,
            )

    def _is_whole(self) -> bool:
        """Whether it is still the directory that was locked, closed to others, with all that a start needs."""
        needed = (LOGS_DIRECTORY, SESSIONS_DIRECTORY, RECORDS_DIRECTORY, EXECUTOR_SOCKET, DESCRIPTOR_SOCKET)
        return (
            self._is_locked()
            and not self.path.stat().st_mode & self._closed_bits
            and all((self.path / name).exists() for name in needed)
        )

    def _restore(self) -> None:
        """Make it anew where it was removed, or what is missing of it, and lock it; a mode too open is mended.

        Raises
        ------
        ConfigError
            When somebody else has put something in its place, others can write to it, or another executor has it.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                self._close_to_readers()
            if self._isolation.uses_accounts:
                self._isolation.make_directories()
            else:
                make_private_directory(self.path)
            if not self._is_locked():
                descriptor = lock_directory(self.path)
                os.close(self._lock_descriptor)
                self._lock_descriptor = descriptor
            self._make_subdirectories()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made anew ({error.strerror or error}).") from None

    def _close_to_readers(self) -> None:
        """Close the directory to others who can read it; what others can write to is no place for sockets of ours."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_descriptor(os.open(self.path, flags)) as descriptor:
            found = os.fstat(descriptor)
            is_readable = bool(found.st_mode & self._closed_bits)
            if found.st_uid == os.getuid() and is_readable and not found.st_mode & 0o022:
                os.fchmod(descriptor, 0o700)

    def _is_locked(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path / EXECUTOR_LOCK), os.fstat(self._lock_descriptor))
        except FileNotFoundError:
            return False

    @property
    def _closed_bits(self) -> int:
        """The mode's bits that nobody else may have."""
        return 0o022 if self._isolation.uses_accounts else 0o066

    def _make_subdirectories(self) -> None:
        make_private_directory(self.path / LOGS_DIRECTORY)
        self._isolation.make_sessions_directory(self.path / SESSIONS_DIRECTORY)

    def release(self) -> None:
        """Let another executor serve it."""
        os.close(self._lock_descriptor)


def bound_logs(directory: Path, live: Container[str]) -> None:
    """Shorten long logs in *directory*, and remove old ones.

    Parameters
    ----------
    directory
        Of the logs; private.
    live
        Names of the processes whose logs are in use.
    """
    for path in directory.glob("*.log"):
        with contextlib.suppress(OSError):  # it is gone, or there is no room: the next look tries again
            if path.stat().st_size > MOST_LOG_BYTES:
                _keep_end(path)
    old = [path for path in directory.glob(log_name("*")) if path.stem.partition("-")[2] not in live]
    old.sort(key=_written_at, reverse=True)
    for path in old[MOST_OLD_LOGS:]:
        path.unlink(missing_ok=True)


def _keep_end(path: Path) -> None:
    """Cut off the beginning of the file; processes that append to it continue at its new end."""
    with closing_descriptor(os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, KEPT_LOG_BYTES, size - KEPT_LOG_BYTES)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"(the beginning is cut off)\n" + end.partition(b"\n")[2])


def _written_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
