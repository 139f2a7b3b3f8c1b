"""Every error this package raises on purpose.

A *refusal* is policy, not a fault: it carries a stable ``reason`` slug (a metric label), is logged at INFO without
a traceback, and its text tells a person what was wrong and what to do. :class:`InvalidTransition` is apart from
the rest: it means a bug of ours.

Every process imports this, and a relay before all else: so it imports nothing.
"""

from __future__ import annotations


class SharedKernelError(Exception):
    """Base of every error raised on purpose."""

    #: stable slug, used as a metric label and in API answers
    reason: str = "error"


class Refused(SharedKernelError):
    """A request was refused by policy.

    Parameters
    ----------
    message
        One sentence for a person: what was wrong and what to do.
    reason
        Stable slug.
    retry_after
        Seconds after which asking again makes sense; None when it never does by itself.
    """

    reason = "refused"

    def __init__(self, message: str, *, reason: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        self.retry_after = retry_after


class QuotaExceeded(Refused):
    """A user asked for more than their quota (of memory or of sessions)."""

    reason = "quota"


class SessionNotFound(SharedKernelError):
    """No session of that id is known here."""

    reason = "session_not_found"


class SessionEndedByUser(SharedKernelError):
    """Somebody has ended a session; the message says who."""

    reason = "session_ended"


class ExecutorUnavailable(SharedKernelError):
    """The executor cannot be reached.

    Parameters
    ----------
    message
        One sentence for a person.
    since
        When it was reached last, in seconds since 1970; None where nobody knows.
    """

    reason = "executor_unavailable"

    def __init__(self, message: str, *, since: float | None = None) -> None:
        super().__init__(message)
        self.since = since


class ProtocolError(SharedKernelError):
    """A peer sent something that the control protocol does not allow."""

    reason = "protocol"


class ConfigError(SharedKernelError):
    """A configuration value cannot be used."""

    reason = "config"


class TraceError(SharedKernelError):
    """A trace for the simulator cannot be read; its text names file, line and column."""

    reason = "trace"


class InvalidTransition(Exception):
    """An event arrived that its session's state does not allow: a bug of ours, never a user's.

    Parameters
    ----------
    session, state, event
        Which session, what it was doing, and the event's type name.
    story
        The session's recent history, oldest first.
    """

    def __init__(self, session: str, state: str, event: str, story: list[str]) -> None:
        history = "\n  ".join(story)
        super().__init__(f"session {session}: {event} is not allowed while {state}; its story:\n  {history}")
