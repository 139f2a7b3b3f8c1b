"""Notify waiting sessions of the reason, their position and the expected end of their wait, and of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from sharedkernel import protocol
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.text import expected_wait, usual_wait

#: seconds until waiting sessions are first notified, and between looks at what has changed
_INTERVAL = 0.1
#: an expected end is sent again when it has moved by more than this share of what is left, and by more than these
#: seconds
_MOVED_SHARE, _MOVED_SECONDS = 0.25, 0.5


class WaitNotifier:
    """Notifies the sessions that wait, while there are any.

    Parameters
    ----------
    sessions
        Processes that serve a session, by its id.
    status
        Returns the status document.
    """

    def __init__(self, sessions: Mapping[str, SessionHandle], status: Callable[[], StatusDocument]) -> None:
        self._sessions = sessions
        self._status = status
        self._due: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Notify nobody any more."""
        if self._due is not None:
            self._due.cancel()

    def notify_soon(self) -> None:
        """Notify the sessions that wait now."""
        if self._due is None and any(process.wait.since is not None for process in self._sessions.values()):
            self._due = asyncio.get_running_loop().call_later(_INTERVAL, self._notify)

    def _notify(self) -> None:
        self._due = None
        if all(process.wait.since is None for process in self._sessions.values()):
            return
        now = asyncio.get_running_loop().time()
        status = self._status()
        running = sorted({session.user for session in status.sessions if session.state == "running"})
        for session in status.sessions:
            process = self._sessions[session.id]
            if process.wait.since is None or session.waiting_for is None:
                continue
            message = protocol.Waiting(
                reason=session.waiting_for,
                position=session.queue_position,
                holder=", ".join(running) or None,
                expected_seconds=expected_wait(session, status),
                usual_seconds=usual_wait(session, status),
            )
            if process.wait.sent is None or _is_news(message, now, process.wait.sent, process.wait.sent_at):
                process.wait.sent, process.wait.sent_at = message, now
                process.send(message)
        self.notify_soon()


def _is_news(message: protocol.Waiting, now: float, sent: protocol.Waiting, sent_at: float) -> bool:
    """Return whether *message* says more than passing time makes of what was *sent*."""
    if _without_expectation(message) != _without_expectation(sent):
        return True
    if message.expected_seconds is None or sent.expected_seconds is None:
        return message.expected_seconds is not sent.expected_seconds
    left = sent.expected_seconds - (now - sent_at)
    moved = abs(message.expected_seconds - left)
    return left <= 0 or moved > max(_MOVED_SECONDS, _MOVED_SHARE * left)


def _without_expectation(message: protocol.Waiting) -> protocol.Waiting:
    return msgspec.structs.replace(message, expected_seconds=None)
