"""The session's own log, apart from the logging of its user.

The root logger is the user's: the session's records do not reach it, and nothing that the user configures (levels,
``logging.disable``, ``dictConfig``) changes what the session logs.

The session logs without locks. User code logs, too, and one interrupt in some twenty of a loop that logs leaves one of
logging's locks locked: the link's thread would wait for it for ever when it has something to log, and the session with
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TextIO

from sharedkernel.system.atomic_file import closing_descriptor

_NAME = "sharedkernel"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _NoLock(contextlib.nullcontext[None]):
    """Stands where logging wants a lock: Python 3.13 enters it without asking whether there is one."""

    def acquire(self) -> None:
        """Return at once."""

    def release(self) -> None:
        """Do nothing."""


class _UnlockedHandler(logging.StreamHandler[TextIO]):
    """Writes each record in one piece, without a lock."""

    def createLock(self) -> None:
        """Have none."""
        self.lock = _NoLock()  # type: ignore[assignment]

    def _at_fork_reinit(self) -> None:
        """There is none to make anew."""


class _UnlockedLogger(logging.Logger):
    """A logger that keeps no cache of its levels, for which there is a lock, and that cannot be disabled."""

    def isEnabledFor(self, level: int) -> bool:
        """Whether records of *level* are written: ipykernel has several for each message that no handler writes."""
        is_written = not self.handlers or any(level >= handler.level for handler in self.handlers)
        return is_written and level >= self.getEffectiveLevel()

    def handle(self, record: logging.LogRecord) -> None:
        """Write *record*."""
        self.callHandlers(record)


def prepare() -> None:
    """Set the loggers of this package that exist apart (in the warm parent: it looks at all loggers)."""
    own = logging.getLogger(_NAME)
    own.propagate = False
    own.setLevel(logging.INFO)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == _NAME:
            logger.__class__ = _UnlockedLogger


def set_up(stream: TextIO) -> None:
    """Have the loggers that are prepared write to *stream* and nowhere else."""
    logging.getLogger(_NAME).handlers = [_handler(stream)]


def take_over(logger: logging.Logger, stream: TextIO, level: int) -> None:
    """Have the *logger* of the kernel application write records of *level* and above to *stream*.

    In a stock kernel they go to the log of the process that started it.
    """
    handler = _handler(stream)
    handler.setLevel(level)
    logger.handlers = [handler]
    logger.__class__ = _UnlockedLogger
    logger.level = logging.DEBUG  # as traitlets has it; there is no cache to clear, for which all would be looked at


def move(log_descriptor: int, path: Path) -> None:
    """Let whatever of this process writes to its log write to *path* from now on; the old file stays as it is.

    The descriptors stay: libraries keep their numbers. Later code of the user has none of the old file.

    Parameters
    ----------
    log_descriptor
        One of the log's descriptors.
    path
        The new log, made if it is missing.

    Raises
    ------
    OSError
        When that cannot be written.
    """
    old = os.fstat(log_descriptor)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_descriptor(os.open(path, flags, 0o600)) as new:
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            try:
                found = os.fstat(descriptor)
            except OSError:  # what listed them
                continue
            if (found.st_dev, found.st_ino) == (old.st_dev, old.st_ino):
                os.dup2(new, descriptor, inheritable=os.get_inheritable(descriptor))


def _handler(stream: TextIO) -> _UnlockedHandler:
    handler = _UnlockedHandler(stream)
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler
