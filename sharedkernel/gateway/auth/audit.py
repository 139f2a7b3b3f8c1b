"""The audit log: who did what to whose session, as lines of JSON in a private, append-only file.

The file is opened for each line, so that it can be rotated at any time. It is rotated here at :data:`MOST_BYTES`, so
that requests do not fill the disk. An action that cannot be written is logged, and allowed: a full disk must not lock
people out of their notebooks.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import os
from asyncio import Future
from pathlib import Path
from typing import Any, ClassVar

from jupyter_server.base.call_context import CallContext
from tornado.web import RequestHandler

from sharedkernel.system.atomic_file import closing_descriptor

log = logging.getLogger(__name__)

#: bytes of the file at which it is set aside, and how many of these are kept, the newest with the suffix `.1`
MOST_BYTES, OLD_FILES = 16 << 20, 4


def user_of(handler: Any) -> str | None:
    """Return the name of the user of *handler*'s request; None if they are not known yet."""
    # The handler's property would log an error before a user is identified.
    return getattr(getattr(handler, "_jupyter_current_user", None), "username", None)


class AuditLog:
    """The file of actions.

    Parameters
    ----------
    path
        The file, made with mode 0600; None: there is no audit log.
    most_bytes
        Size at which it is set aside.
    """

    def __init__(self, path: Path | None, *, most_bytes: int = MOST_BYTES) -> None:
        #: the file; None: there is no audit log
        self.path = path
        self._most_bytes = most_bytes

    @classmethod
    def named(cls, name: str, directory: Path) -> AuditLog:
        """Return the audit log that the option `audit_file` names; an error is logged if it cannot be written.

        Parameters
        ----------
        name
            The option's value.
        directory
            Where it is if that is empty.
        """
        if name == "none":
            return cls(None)
        path = Path(name).expanduser() if name else directory / "audit.jsonl"
        try:
            os.close(_open(path))
        except OSError as error:
            log.error(
                "the audit log %s cannot be written (%s); name another file with --audit-file.", path, error.strerror
            )
        return cls(path)

    def record(self, action: str, **details: Any) -> None:
        """Write an action of the current request's user; outside of requests, of the gateway itself.

        Parameters
        ----------
        action
            In a word or two, such as ``"end session"``.
        details
            Further values for JSON; ``user`` and ``address`` replace the request's.
        """
        if self.path is None:
            return
        handler = CallContext.get(CallContext.JUPYTER_HANDLER)
        user, address = user_of(handler), None if handler is None else handler.request.remote_ip
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "user": user, "address": address, "action": action, **details}
        try:
            with closing_descriptor(_open(self.path)) as descriptor:
                os.write(descriptor, json.dumps(entry).encode() + b"\n")
                is_full = os.fstat(descriptor).st_size >= self._most_bytes
            if is_full:
                _set_aside(self.path)
        except OSError as error:
            log.error("%s by %s could not be written to %s: %s", action, user, self.path, error.strerror)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _set_aside(path: Path) -> None:
    """Let the next line begin a new file; the oldest one goes."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, OLD_FILES + 1))]
    for older, newer in itertools.pairwise(reversed(names)):
        with contextlib.suppress(FileNotFoundError):
            os.replace(newer, older)


class AuditedHandler(RequestHandler):
    """Records requests in the audit log, with the session's owner and the outcome; the last base before Jupyter's."""

    #: action of each HTTP method
    actions: ClassVar[dict[str, str]] = {}
    #: the session of the request, if the route does not name it
    acted_on: str | None = None
    #: the kernel or detached session of that name, with its owner and notebook
    _found: Any = None

    async def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Look up the session: afterwards it may be gone."""
        await super().prepare(*args, **kwargs)  # type: ignore[misc]
        self._find_session()

    def finish(self, *args: Any, **kwargs: Any) -> Future[None]:
        """Record the action, then answer, so that a client with an answer finds the record."""
        action = self.actions.get(self.request.method or "")
        if action is not None and user_of(self) is not None and not self._finished:
            self.record_action(action.format(**self.path_kwargs), status=self.get_status())
        return super().finish(*args, **kwargs)

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action* on the session of the request, with *details*."""
        known = {"session": self._find_session(), "owner": self._found and self._found.user}
        if self._found is not None and self._found.notebook is not None:
            known["notebook"] = self._found.notebook
        self.settings["audit_log"].record(action, **{**known, **details})

    def _find_session(self) -> str | None:
        session = self.acted_on or self.path_kwargs.get("kernel_id")
        if session is not None and self._found is None:
            self._found = self.settings["kernel_manager"].find(session)
        return session
