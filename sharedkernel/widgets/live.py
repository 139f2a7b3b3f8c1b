"""The widgets themselves: a text that a thread keeps up to date, for JupyterLab a mark to draw its panel there.

The session's link to its executor must never wait for a widget: it brings grants as well. So it only leaves the newest
status document with the :class:`Feed`, whose thread brings it to the widgets, so that they move while the main thread
runs a cell or waits in the queue; a document that they are too slow for is passed over. What it is turned into is in
`render.py`.

There are no buttons: what a button says to a kernel is heard only when its cell has ended, and what must work during a
cell (interrupt, offload) belongs where it can reach the gateway, in JupyterLab's own controls and the extension.
"""

from __future__ import annotations

import contextlib
import html
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from ipywidgets import HTML

from sharedkernel.errors import SharedKernelError
from sharedkernel.status.document import WatchedStatus
from sharedkernel.system.deferred_signals import signals_held
from sharedkernel.widgets import render

log = logging.getLogger(__name__)

#: seconds between two documents: at least two a second must be shown
INTERVAL = 0.4
#: widgets that are kept up to date, newest first: a cell that is run again and again leaves one behind each time
MOST_FOLLOWERS = 8

#: takes a document and this session's id
Follower = Callable[[WatchedStatus, str], None]

#: seconds that a new widget waits for its first figures, so that even a client without widgets shows some
_FIRST_FIGURES_TIMEOUT = 1.0
#: seconds between two updates while this notebook does nothing: what nobody reads must not pile up at the gateway
_IDLE_INTERVAL = 2.0
#: points of a curve, about a minute of them
_HISTORY_LENGTH = 150
#: marks an output for JupyterLab's extension, which draws it as its panel does (`labextension/src/notebookview.tsx`)
_VIEW = "application/vnd.sharedkernel.view+json"


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


def _as_html(text: str) -> str:
    """Return *text* as HTML: escaped, since names in it come from other people."""
    return f"<pre>{html.escape(text)}</pre>"


class _LiveView(HTML):
    """Base of the widgets: follows the status document and shows a rendering of it until closed."""

    #: what it shows: ``usage``, ``queue``, ``lanes``
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        self._session_id: str | None = None
        self._leave: Callable[[], None] = lambda: None
        self._text = render.NOT_SHARED
        self._state: str | None = None
        self._shown_at = 0.0
        self._first_figures = threading.Event()
        self._held: deque[int] = deque(maxlen=_HISTORY_LENGTH)
        super().__init__(value=_as_html(render.NOT_SHARED), **kwargs)
        with contextlib.suppress(ImportError, SharedKernelError):
            self._leave = feed.follow(self._take)
            self._first_figures.wait(_FIRST_FIGURES_TIMEOUT)

    def close(self) -> None:
        """Remove the widget and stop following the device."""
        self._leave()
        super().close()

    def _take(self, status: WatchedStatus, session_id: str) -> None:
        self._session_id = session_id
        session = status.session(session_id)
        state = None if session is None else session.state
        now = time.monotonic()
        if state in ("idle", "offloaded") and state == self._state and now < self._shown_at + _IDLE_INTERVAL:
            return
        self._state, self._shown_at = state, now
        # besides its framework
        self._held.append(0 if session is None else session.persistent_bytes + max(session.live_bytes, 0))
        self._text = render.as_text(self.parts, status, session_id, tuple(self._held))
        # An unchanged value sends nothing.
        self.value = _as_html(self._text)
        self._first_figures.set()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Add the figures of this moment for what cannot show widgets: consoles, exported notebooks."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = self._text
        data["text/html"] = self.value
        if self._session_id is not None:
            data[_VIEW] = {"session": self._session_id, "parts": [*self.parts]}
        return bundle

    def __repr__(self) -> str:
        return self._text


class Usage(_LiveView):
    """Device memory by kind, this notebook's and all of its user's, against the user's quota, and lately.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Usage

        Usage()
    """

    parts = ("usage",)


class Queue(_LiveView):
    """Whether this notebook runs or waits, its place in the queue, the wait to expect, and who is in which lane.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Queue

        Queue()
    """

    parts = ("queue",)


class Lanes(_LiveView):
    """The last minutes of the device: who ran how long, this notebook's turns and waits picked out.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Lanes

        Lanes()
    """

    parts = ("lanes",)


class Dashboard(_LiveView):
    """Memory, queue and lanes in one.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Dashboard

        Dashboard()
    """

    parts = ("queue", "usage", "lanes")
