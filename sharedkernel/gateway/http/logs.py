"""The gateway's log: without tokens, and as lines of JSON if machines read it.

The request guard keeps tokens out of addresses and headers that are logged. Wherever else one comes from (the path of a
request, a refused configuration, an exception of a library), :class:`RedactingFormatter` removes it.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from typing import Any

from jupyter_server.base.call_context import CallContext

from sharedkernel.gateway.auth.audit import user_of

#: the secret part of this gateway's tokens; what is called a token, whatever it looks like; and long hexadecimal
#: numbers, as Jupyter makes them (kernel ids are shorter, and have dashes)
_SECRETS = re.compile(
    r"(?P<kept>\bsk-[0-9a-f]{1,8}-)[0-9a-f]{8,}"
    r"|(?P<name>\b(?:token|bearer|api_key|password)\b[\"']?(?:\s*[=:]\s*|%3d|\s+)[\"']?(?:(?:token|bearer)\s+)?)"
    r"(?=[^\s\"'&]*[0-9])[^\s\"'&,;)]{16,}"
    r"|\b[0-9a-f]{40,}\b",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return *text* with ``[secret]`` in the place of everything that looks like a token."""
    return _SECRETS.sub(lambda found: f"{found['kept'] or found['name'] or ''}[secret]", text)


class RedactingFormatter(logging.Formatter):
    """Formats a record as another formatter does, without secrets.

    Parameters
    ----------
    formatter
        The other one.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as text, its exception included."""
        return redact(self._formatter.format(record))


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
        if handler is not None:
            known = {"user": user_of(handler), "session": (handler.path_kwargs or {}).get("kernel_id")}
            entry |= {name: value for name, value in known.items() if value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up(log: logging.Logger, style: str) -> None:
    """Send all log messages of this package, and of asyncio, to one logger's handlers, and keep secrets out of them.

    Parameters
    ----------
    log
        The application's logger.
    style
        ``"text"`` or ``"json"``.
    """
    for name, level in (("sharedkernel", log.level), ("asyncio", logging.WARNING)):
        other = logging.getLogger(name)
        other.parent = log
        other.setLevel(level)
    for handler in log.handlers:
        formatter = JsonFormatter() if style == "json" else handler.formatter or logging.Formatter()
        handler.setFormatter(RedactingFormatter(formatter))
