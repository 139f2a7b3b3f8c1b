"""The widgets themselves: a piece of HTML that a kernel thread keeps up to date.

The status document comes from :mod:`sharedkernel.session.view`, in a background thread, so that the widgets move
while the main thread runs a cell or waits in the queue. What it is turned into is in `render.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ipywidgets import HTML

from sharedkernel.errors import SharedKernelError
from sharedkernel.widgets import render

#: seconds between two updates
_INTERVAL = 0.5
#: seconds that a new widget waits for its first figures, so that even a client without widgets shows some
_FIRST_FIGURES_TIMEOUT = 1.0


class _LiveView(HTML):
    """Base of the widgets: subscribes to the status document and shows a rendering of it until closed."""

    def __init__(self, **kwargs: Any) -> None:
        self._unsubscribe: Callable[[], None] | None = None
        self._text = render.NOT_SHARED
        super().__init__(value=render.paragraph(render.NOT_SHARED), **kwargs)
        self._subscribe()

    def render_text(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return *status* as plain text (subclasses)."""
        raise NotImplementedError

    def render_html(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return *status* as HTML, with everything escaped (subclasses)."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the widget and stop following the device."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        super().close()

    def _subscribe(self) -> None:
        try:
            # Here, because the user's side has neither torch nor the session's packages.
            from sharedkernel.session import view

            first_figures = threading.Event()

            def update(status: dict[str, Any]) -> None:
                self._show(status, view.session_id())
                first_figures.set()

            self._unsubscribe = view.subscribe(update, interval=_INTERVAL)
        except (ImportError, SharedKernelError):
            return
        first_figures.wait(_FIRST_FIGURES_TIMEOUT)

    def _show(self, status: Mapping[str, Any], session_id: str) -> None:
        self._text = self.render_text(status, session_id)
        # An unchanged value sends nothing.
        self.value = self.render_html(status, session_id)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Add the figures of this moment for what cannot show widgets: consoles, exported notebooks."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = self._text
        data["text/html"] = self.value
        return bundle

    def __repr__(self) -> str:
        return self._text


class Usage(_LiveView):
    """Device memory by kind, this notebook's and all of its user's, against the user's quota.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Usage

        Usage()
    """

    def render_text(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return the memory figures in one line."""
        return render.usage_text(status, session_id)

    def render_html(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return the memory figures with a bar."""
        return render.usage_html(status, session_id)


class Queue(_LiveView):
    """Whether this notebook runs or waits, its place in the queue, and who is in which lane.

    Examples
    --------
    In a notebook's cell::

        from sharedkernel.widgets import Queue

        Queue()
    """

    def render_text(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return this notebook's place in one line."""
        return render.queue_text(status, session_id)

    def render_html(self, status: Mapping[str, Any], session_id: str) -> str:
        """Return this notebook's place and the lanes."""
        return render.queue_html(status, session_id)
