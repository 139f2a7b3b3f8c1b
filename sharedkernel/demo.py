"""Runs several people's notebooks at the same time, each through the installed kernelspec and a Jupyter client.

The notebooks run in a thread of their own with its own event loop, so that the main thread can draw and be
interrupted. Kernels stay up until :meth:`NotebookRuns.close`: what is resident when all notebooks are done can be
looked at.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from sharedkernel.errors import SharedKernelError
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack

#: longest time that one cell may take, waits included, in seconds
_CELL_TIMEOUT = 900
#: seconds that a kernel may take until it answers
_START_TIMEOUT = 60


def examples_directory() -> Path:
    """Return where the example notebooks are: in the installed package, else beside it in a checkout.

    Raises
    ------
    SharedKernelError
        When they are in neither place.
    """
    package = Path(str(resources.files("sharedkernel")))
    for directory in (package / "examples", package.parent / "examples"):
        if directory.is_dir():
            return directory
    raise SharedKernelError(f"the example notebooks are not beside {package}; install the package anew.")


@dataclass(slots=True, kw_only=True)
class NotebookRun:
    """One person's notebook, and how far it has come. Written by the notebooks' thread, read by others."""

    user: str
    notebook: Path
    cells: int = 0
    cells_done: int = 0
    #: monotonic seconds; None: not yet
    started_at: float | None = None
    ended_at: float | None = None
    #: why it failed, in one line; None: it did not
    failure: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over, well or not."""
        return self.ended_at is not None

    @property
    def seconds(self) -> float:
        """The time for which it has run, or ran."""
        if self.started_at is None:
            return 0.0
        return (self.ended_at or time.monotonic()) - self.started_at


class NotebookRuns:
    """Notebooks of several users, running at once on a stack.

    Parameters
    ----------
    stack
        Where they run; every user in *notebooks* is one of its users.
    notebooks
        Who runs what.
    """

    def __init__(self, stack: LocalStack, notebooks: Sequence[tuple[str, Path]]) -> None:
        self.runs = [NotebookRun(user=user, notebook=path) for user, path in notebooks]
        self._stack = stack
        self._specs = KernelSpecManager(kernel_dirs=[str(stack.kernels_directory)], ensure_native_kernel=False)
        self._managers: list[AsyncKernelManager] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="notebooks")

    @property
    def ended(self) -> bool:
        """Whether every notebook is over."""
        return all(run.ended for run in self.runs)

    def start(self) -> None:
        """Start every notebook."""
        self._thread.start()
        for run in self.runs:
            asyncio.run_coroutine_threadsafe(self._run(run), self._loop)

    def close(self) -> None:
        """Stop what still runs, shut the kernels down, and return once all is gone."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        # Also those in which nbclient watches its kernels: it forgets them when it is cancelled itself.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(manager.shutdown_kernel() for manager in self._managers), return_exceptions=True)

    async def _run(self, run: NotebookRun) -> None:
        run.started_at = time.monotonic()

        def count(execute_reply: Mapping[str, Any], **_: Any) -> None:
            run.cells_done += execute_reply["content"]["status"] == "ok"

        try:
            notebook = nbformat.read(run.notebook, as_version=4)
            run.cells = sum(cell.cell_type == "code" for cell in notebook.cells)
            manager = await self._start_kernel(run)
            client = NotebookClient(notebook, km=manager, timeout=_CELL_TIMEOUT, on_cell_executed=count)
            # Ready before nbclient has it: what fails while nbclient waits itself leaves its exit handler registered.
            client.kc = manager.client()
            client.kc.start_channels()
            try:
                await client.kc.wait_for_ready(timeout=_START_TIMEOUT)
                await client.async_execute()
            finally:
                client.kc.stop_channels()
        except CellExecutionError as error:
            run.failure = f"cell {run.cells_done + 1}: {error.ename}: {error.evalue}"
        except (DeadKernelError, TimeoutError, RuntimeError, SharedKernelError) as error:
            run.failure = f"cell {run.cells_done + 1}: {error}"
        finally:
            run.ended_at = time.monotonic()

    async def _start_kernel(self, run: NotebookRun) -> AsyncKernelManager:
        clients = self._stack.directory / "clients"
        clients.mkdir(mode=0o700, exist_ok=True)
        # Unix sockets and a connection file inside the stack's directory: no port, and nothing left behind.
        manager = AsyncKernelManager(
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=self._specs,
            connection_file=str(clients / f"{run.user}.json"),
            transport="ipc",
            ip=str(clients / run.user),
        )
        self._managers.append(manager)
        # JPY_SESSION_NAME is how a Jupyter server tells a kernel its notebook.
        own = {"JPY_SESSION_NAME": run.notebook.name, **self._stack.client_environment(run.user)}
        await manager.start_kernel(
            env=os.environ | own, cwd=str(run.notebook.parent), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return manager
