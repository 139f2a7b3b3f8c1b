"""Follow what a stack's status says about its sessions while notebooks run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import StatusDocument

#: seconds between two looks
_INTERVAL = 0.25


class Watch:
    """Figures of all sessions that a stack has had since :func:`watched` began."""

    def __init__(self) -> None:
        #: by session id, as last seen
        self._offloads: dict[str, int] = {}
        #: by user: the highest sum of a session's memory, bytes
        self.peaks: dict[str, int] = {}
        #: by session id: when it began to wait, and for what
        self._waiting: dict[str, tuple[float, str]] = {}
        #: by user: the waiting session
        self._waiting_users: dict[str, str] = {}
        #: the longest time that one session waited without a break, seconds
        self.longest_wait = 0.0

    @property
    def num_offloads(self) -> int:
        """How often a session was offloaded."""
        return sum(self._offloads.values())

    def wait_of(self, user: str) -> str | None:
        """Return what *user*'s notebook waits for and for how long, in words; None: it does not wait."""
        session = self._waiting_users.get(user)
        if session is None:
            return None
        since, reason = self._waiting[session]
        return f"{time.monotonic() - since:.0f} s for {reason}"

    def note(self, status: StatusDocument) -> None:
        """Take figures from a *status* document."""
        now = time.monotonic()
        before, self._waiting, self._waiting_users = self._waiting, {}, {}
        for session in status.sessions:
            name, user, reason = session.id, session.user, session.waiting_for
            self._offloads[name] = session.offloads
            memory = session.persistent_bytes + (session.ephemeral_bytes or 0) + session.framework_bytes
            self.peaks[user] = max(self.peaks.get(user, 0), memory)
            if reason is not None:
                since = before.get(name, (now, ""))[0]
                self._waiting[name] = since, str(reason)
                self._waiting_users[user] = name
                self.longest_wait = max(self.longest_wait, now - since)


@contextlib.asynccontextmanager
async def watched(stack: LocalStack) -> AsyncIterator[Watch]:
    """Yield a :class:`Watch` of a running *stack* that is kept up to date until the block ends."""
    watch = Watch()

    async def follow() -> None:
        while True:
            watch.note(await asyncio.to_thread(stack.status))
            await asyncio.sleep(_INTERVAL)

    task = asyncio.create_task(follow())
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
