"""Notify waiting sessions of the reason, their position and the expected end of their wait, and of changes."""

from __future__ import annotations

import asyncio

import msgspec

from sharedkernel import protocol
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.quota_check import LEAST_ROOM
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.status.text import expected_waits, notebook_in_words

#: seconds until waiting sessions are first notified, and between looks at what has changed
_INTERVAL = 0.1
#: the same for each that waits, if they are many: notifying them takes no more than a small part of a processor
_INTERVAL_EACH = 0.005
#: an expected end is sent again when it has moved by more than this share of what is left, and by more than these
#: seconds
_MOVED_SHARE, _MOVED_SECONDS = 0.25, 0.5


class WaitNotifier:
    """Notifies the sessions that wait, while there are any; needs a running event loop.

    Parameters
    ----------
    controller
        Knows who waits.
    """

    def __init__(self, controller: SessionController) -> None:
        self._controller = controller
        self._due: asyncio.TimerHandle | None = None
        #: sessions that waited at the last look
        self._num_waiting = 0

    def close(self) -> None:
        """Notify nobody any more."""
        if self._due is not None:
            self._due.cancel()

    def notify_soon(self) -> None:
        """Notify the sessions that wait now."""
        if self._due is None and self._controller.driver.scheduler.has_queue:
            interval = max(_INTERVAL, _INTERVAL_EACH * self._num_waiting)
            self._due = asyncio.get_running_loop().call_later(interval, self._notify)

    def _notify(self) -> None:
        self._due = None
        now, config = asyncio.get_running_loop().time(), self._controller.driver.scheduler.config
        views = self._controller.snapshot().sessions
        running = sorted({view.user for view in views if view.state is SessionState.RUNNING})
        idle = [view for view in views if view.state is SessionState.IDLE and view.persistent >= LEAST_ROOM]
        idle.sort(key=lambda view: -view.persistent)  # who is asked for memory has most of it
        expected = expected_waits(views, foreseen_by=POLICIES[config.policy].foreseen_by, quantum=config.quantum)
        self._num_waiting = 0
        for view in views:
            process = self._controller.sessions[view.id]
            if process.wait.since is None or view.waiting_for is None or view.queue_position is None:
                continue
            self._num_waiting += 1
            asked = None if view.needed is None else next((one for one in idle if one.user != view.user), None)
            maker = None if view.room_from is None else self._controller.sessions.get(view.room_from)
            message = protocol.Waiting(
                reason=view.waiting_for,
                position=view.queue_position,
                holder=", ".join(running) or None,
                expected_seconds=expected[view.id],
                needed_bytes=view.needed,
                free_bytes=view.free,
                room_from=None if maker is None else self._name(maker, view.user),
                is_room_coming=view.is_room_coming,
                idle_of=None if asked is None else notebook_in_words(asked.user, None, is_own=False, is_idle=True),
                idle_bytes=None if asked is None else asked.persistent,
            )
            if process.wait.sent is None or _is_news(message, now, process.wait.sent, process.wait.sent_at):
                process.wait.sent, process.wait.sent_at = message, now
                process.send(message)
        self.notify_soon()

    def _name(self, maker: SessionHandle, user: str) -> str:
        """Return the notebook that makes room, as *user* may see it."""
        own = maker.user == user
        is_idle = self._controller.is_idle(maker)
        return notebook_in_words(maker.user or "", maker.notebook, is_own=own, is_idle=is_idle)


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
