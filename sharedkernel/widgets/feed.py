"""Brings status documents to the widgets of a session, in a thread of their own.

The session's link to its executor must never wait for a widget: it brings grants as well. So it only leaves the newest
document here. A document that the widgets are too slow for is passed over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sharedkernel.status.document import WatchedStatus
from sharedkernel.system.deferred_signals import signals_held

log = logging.getLogger(__name__)

#: seconds between two documents: at least two a second must be shown
INTERVAL = 0.4
#: widgets that are kept up to date, newest first: a cell that is run again and again leaves one behind each time
MOST_FOLLOWERS = 8

#: takes a document and this session's id
Follower = Callable[[WatchedStatus, str], None]


class Feed:
    """Hands each document to all followers; follows the device only while there are some."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._followers: list[Follower] = []
        #: the newest document, until it is handed out
        self._newest: WatchedStatus | None = None
        #: the last one that came; None while nobody follows
        self._last: WatchedStatus | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call *follower* with each document from now on, on the feed's thread.

        Returns
        -------
        A function that ends it. It ends by itself when :data:`MOST_FOLLOWERS` others came after it.

        Raises
        ------
        SharedKernelError
            When this process is no session.
        ImportError
            When it cannot be one: the user's side has not the packages.
        """
        # Here, because the user's side has neither torch nor the session's packages.
        from sharedkernel.ipc import current_session

        session_id = current_session.session_id()
        # An interrupt would leave the lock locked, for which the link waits then.
        with signals_held(), self._changed:
            self._followers = [*self._followers, follower][-MOST_FOLLOWERS:]
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(
                    target=self._run, args=(session_id,), name="sharedkernel-widgets", daemon=True
                )
                self._thread.start()
            if self._unsubscribe is None:
                self._unsubscribe = current_session.subscribe(self._take, interval=INTERVAL)
            elif self._last is not None:
                self._take(self._last)  # a newcomer should not wait for the next one
        return lambda: self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        with signals_held(), self._changed:
            self._followers = [other for other in self._followers if other is not follower]
            if not self._followers and self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = self._last = None

    def _take(self, status: WatchedStatus) -> None:
        with self._changed:
            self._newest = self._last = status
            self._changed.notify()

    def _run(self, session_id: str) -> None:
        while True:
            with self._changed:
                while self._newest is None:
                    self._changed.wait()
                status, self._newest = self._newest, None
                followers = list(self._followers)
            for follower in followers:
                try:
                    follower(status, session_id)
                except Exception:
                    log.exception("a widget could not be brought up to date")


#: the one of this process
feed = Feed()
