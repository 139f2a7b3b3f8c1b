"""Log format for machines: lines of JSON, with the user and the session of the request."""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any

from jupyter_server.base.call_context import CallContext

from sharedkernel.gateway.auth.audit import user_of


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and user and session if they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line."""
        entry: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        handler = CallContext.get(CallContext.JUPYTER_HANDLER)
        user = getattr(record, "user", None)
        session = getattr(record, "session", None)
        if handler is not None:
            user = user or user_of(handler)
            session = session or (handler.path_kwargs or {}).get("kernel_id")
        entry |= {name: value for name, value in (("user", user), ("session", session)) if value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up(log: logging.Logger, style: str) -> None:
    """Send all log messages of this package to one logger's handlers.

    Parameters
    ----------
    log
        The application's logger.
    style
        ``"text"`` or ``"json"``.
    """
    ours = logging.getLogger("sharedkernel")
    ours.parent = log
    ours.setLevel(log.level)
    if style == "json":
        for handler in log.handlers:
            handler.setFormatter(JsonFormatter())
