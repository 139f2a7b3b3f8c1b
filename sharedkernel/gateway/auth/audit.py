"""Who did what to whose session: one line of JSON for each act, in a private file that is only ever added to.

The file is opened anew for each line, so that whatever rotates logs may move it away at any time. An act that cannot be
written is logged, and done: a full disk must not lock people out of their notebooks.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from asyncio import Future
from pathlib import Path
from typing import Any, ClassVar

from jupyter_server.base.call_context import CallContext
from tornado.web import RequestHandler

log = logging.getLogger(__name__)


def user_of(handler: Any) -> str | None:
    """Return whose request *handler* serves; None while that is not known, and outside of requests."""
    # Its property would complain while nobody was identified yet.
    return getattr(getattr(handler, "_jupyter_current_user", None), "username", None)


class AuditLog:
    """Writes down acts.

    Parameters
    ----------
    path
        The file, made 0600; None: nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def check(self) -> None:
        """Say at the start if nothing can be written down; each act that is not is told of by itself."""
        if self._path is None:
            return
        try:
            os.close(_open(self._path))
        except OSError as error:
            log.error(
                "nothing that is done can be written down in %s (%s); name another file with --audit-file.",
                self._path,
                error.strerror,
            )

    def record(self, action: str, **details: Any) -> None:
        """Write down that *action* was done.

        The acting user and where they came from are those of the present request; outside of requests it is the
        gateway itself.

        Parameters
        ----------
        action
            In a word or two, such as ``"end session"``.
        details
            What else there is to say, as JSON can say it; ``user`` and ``address`` go before the request's.
        """
        if self._path is None:
            return
        handler = CallContext.get(CallContext.JUPYTER_HANDLER)
        user = user_of(handler)
        entry = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "user": user,
            "address": None if handler is None else handler.request.remote_ip,
            "action": action,
            **details,
        }
        try:
            descriptor = _open(self._path)
            try:
                os.write(descriptor, json.dumps(entry).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            log.error("%s by %s could not be written to %s: %s", action, user, self._path, error.strerror)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class Audited(RequestHandler):
    """Writes down what requests do, with whose session it was and how it went; the last base before Jupyter's."""

    #: what each method does
    acts: ClassVar[dict[str, str]] = {}
    #: the session that was acted on, where the route does not name it
    acted_on: str | None = None
    _owner: str | None = None

    async def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Note whose session it is: afterwards it may be gone."""
        await super().prepare(*args, **kwargs)  # type: ignore[misc]
        self._owner = self._find_owner()

    def finish(self, *args: Any, **kwargs: Any) -> Future[None]:
        """Write it down and answer, in this order: who has the answer may look up what it says."""
        act = self.acts.get(self.request.method or "")
        if act is not None and user_of(self) is not None and not self._finished:
            self.record_act(act.format(**self.path_kwargs), status=self.get_status())
        return super().finish(*args, **kwargs)

    def record_act(self, act: str, **details: Any) -> None:
        """Write down *act*, done to the session that the request is about."""
        session = self.acted_on or self.path_kwargs.get("kernel_id")
        owner = self._owner or self._find_owner()
        self.settings["audit_log"].record(act, session=session, owner=owner, **details)

    def _find_owner(self) -> str | None:
        session = self.acted_on or self.path_kwargs.get("kernel_id")
        owner: str | None = None if session is None else self.settings["kernel_manager"].owner(session)
        return owner
