"""Background tasks, referenced so that asyncio does not drop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from sharedkernel.errors import SharedKernelError

log = logging.getLogger(__name__)


def _log_failure(error: BaseException) -> None:
    """Log what ended a task: a refusal is no fault."""
    if isinstance(error, SharedKernelError):
        log.info("not done: %s", error)
    else:
        log.error("unexpected %s", type(error).__name__, exc_info=error)


class BackgroundTasks:
    """The running background tasks of one owner.

    Parameters
    ----------
    on_failure
        Called with the error of a task that fails.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] = _log_failure) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Start *work* on the running event loop and return its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks except the current one."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
