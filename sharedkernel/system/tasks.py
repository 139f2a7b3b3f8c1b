"""Background tasks, referenced so that asyncio does not drop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sharedkernel.errors import SharedKernelError

log = logging.getLogger(__name__)


class BackgroundTasks:
    """The running background tasks of one owner; a task that fails is logged."""

    def __init__(self) -> None:
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
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SharedKernelError):
            log.info("not done: %s", error)
        else:
            log.error("unexpected %s", type(error).__name__, exc_info=error)
