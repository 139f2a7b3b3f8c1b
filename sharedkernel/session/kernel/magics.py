"""``%shared``: what the widgets show, as text, for consoles and for who would rather read."""

from __future__ import annotations

import inspect
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from sharedkernel.ipc import current_session
from sharedkernel.session.memory import reclaimable
from sharedkernel.status.document import WatchedStatus
from sharedkernel.system.deferred_signals import InterruptSafeEvent

#: seconds to wait for the device's answer
_ANSWER_TIMEOUT = 2.0
_PARTS = ("usage", "queue", "lanes")
_NO_ANSWER = "The device does not answer at the moment; your session is not affected. Try again."


@magics_class
class SharedMagics(Magics):
    """Line magics about the shared device."""

    @line_magic
    def shared(self, words: str) -> None:
        """Print this notebook's memory, its place in the queue, and the lanes of the last minutes.

        ``%shared`` prints all of it, ``%shared usage``, ``%shared queue`` and ``%shared lanes`` a part.
        ``%shared attach`` brings back the earlier session of this notebook, with its variables, in place of this one.
        ``%shared free`` forgets the last error and the results that were shown (``Out``, ``_``), and collects garbage.

        Raises
        ------
        UsageError
            For a part that there is not.
        """
        shell: Any = self.shell
        if words.split() == ["attach"]:
            print(current_session.want_earlier(_ANSWER_TIMEOUT) or _NO_ANSWER)  # noqa: T201
            return
        if words.split() == ["help"]:
            print(inspect.cleandoc(SharedMagics.shared.__doc__ or "").partition("\n\nRaises")[0])  # noqa: T201
            return
        if words.split() == ["free"]:
            reclaimable.forget_results(shell)
            shell.kernel.gate.report_freed()
            print("The last error, results that were shown, and garbage hold no memory any more.")  # noqa: T201
            return
        parts = words.split() or list(_PARTS)
        if unknown := [part for part in parts if part not in _PARTS]:
            raise UsageError(
                f"%shared has no part {unknown[0]!r}; write %shared, or one of {', '.join(_PARTS)}, attach, free, help."
            )
        shell.kernel.gate.report_freed()
        status = _newest_status()
        if status is None:
            print(_NO_ANSWER)  # noqa: T201
            return
        # Here, because nothing of it is needed before somebody asks.
        from sharedkernel.widgets.render import as_text

        print(as_text(parts, status, current_session.session_id()))  # noqa: T201


def _newest_status() -> WatchedStatus | None:
    """Return the status document of this moment; None when it does not come in time."""
    answered = InterruptSafeEvent()
    documents: list[WatchedStatus] = []

    def take(status: WatchedStatus) -> None:
        documents.append(status)
        answered.set()

    unsubscribe = current_session.subscribe(take)
    try:
        answered.wait(_ANSWER_TIMEOUT)
    finally:
        unsubscribe()
    return documents[-1] if documents else None
