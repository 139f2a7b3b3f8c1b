"""Run a notebook's cells on a kernel, as nbclient does, and keep what the saved notebook would show.

A run never raises for what a notebook does: a cell that fails, takes too long or ends its kernel is an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import zmq
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import ensure_async
from nbformat import NotebookNode
from nbformat.warnings import MissingIDFieldWarning

from sharedkernel.local_stack import LocalStack

#: the outcome of a notebook all of whose cells ran, whether or not they raised
OK = "ok"
TOO_LONG = "too long"
KERNEL_DIED = "kernel died"
_START_TIMEOUT = 120.0
_LOOK_INTERVAL = 0.5
#: seconds that outputs may come after a cell's reply
_OUTPUT_TIMEOUT = 30
_NOTEBOOK = "nb.ipynb"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that notebooks can run on."""

    #: kernelspec
    name: str
    #: environment of the kernel's process, which for Shared GPU is the relay
    environment: Mapping[str, str]
    #: folder of kernelspecs beside this environment's own `python3`
    kernels_directory: Path | None = None

    def manager(self) -> AsyncKernelManager:
        """Return a manager that has not started the kernel yet."""
        directories = [] if self.kernels_directory is None else [str(self.kernels_directory)]
        return AsyncKernelManager(kernel_name=self.name, kernel_spec_manager=KernelSpecManager(kernel_dirs=directories))


@dataclass(frozen=True, slots=True)
class Frame:
    """Code that runs before and after a notebook's cells and leaves no trace in it."""

    before: str
    #: raises where what `before` has made is not there any more
    after: str


@dataclass(slots=True)
class Cell:
    """A code cell that ran."""

    #: position in the notebook, text cells included
    index: int
    source: str
    execution_count: int | None
    outputs: list[NotebookNode]
    #: time that it took
    seconds: float = 0.0


@dataclass(slots=True)
class Run:
    """A notebook that ran on one kernel."""

    #: :data:`OK`, :data:`TOO_LONG`, :data:`KERNEL_DIED`, an error of the frame's code, or why the kernel did not start
    outcome: str = OK
    #: code cells that ran, in order
    cells: list[Cell] = field(default_factory=list)
    #: time that the cells took, without pauses
    seconds: float = 0.0
    #: folder that the notebook ran in, which its outputs may name
    folder: str = ""
    #: states of the widgets that the saved notebook holds, by model id
    widgets: dict[str, Any] = field(default_factory=dict)
    #: what was noted when the time was up
    noted: str | None = None


def stock_kernel() -> Kernel:
    """Return the stock kernel of this Python environment."""
    return Kernel("python3", _clean_environment())


def shared_kernel(stack: LocalStack, user: str) -> Kernel:
    """Return Shared GPU as *user* of a running *stack* has it."""
    environment = _clean_environment() | stack.client_environment(user)
    return Kernel("shared-gpu", environment, stack.kernels_directory)


def read_cells(folder: Path) -> list[NotebookNode]:
    """Return the cells of the notebook in a folder, ``nb.ipynb``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingIDFieldWarning)  # of older notebooks
        notebook = nbformat.read(folder / _NOTEBOOK, as_version=4)
    for index, cell in enumerate(notebook.cells):
        cell.setdefault("id", f"cell-{index}")
    return list(notebook.cells)


def cells_from_sources(sources: Sequence[str]) -> list[NotebookNode]:
    """Return code cells with the given *sources*."""
    return [nbformat.v4.new_code_cell(source) for source in sources]


async def run_notebook(
    cells: Sequence[NotebookNode],
    kernel: Kernel,
    *,
    files: Path | None = None,
    limit: float,
    pause: float = 0.0,
    answers: Sequence[str] = (),
    frame: Frame | None = None,
    at_timeout: Callable[[], str | None] = lambda: None,
) -> Run:
    """Run *cells* in order on a fresh kernel, in a folder of their own.

    Parameters
    ----------
    cells
        Text cells are left out.
    kernel
        The kernel to start.
    files
        Folder whose contents are copied to where the notebook runs; None: an empty folder.
    limit
        Seconds that all cells may take together, without pauses.
    pause
        Seconds before each cell, as a user would think.
    answers
        Replies to `input()`, in order; without any, the client says that it has no input.
    frame
        Code around the cells, which the notebook does not show.
    at_timeout
        Is called when the time is up, while the kernel still runs; what it returns is the run's `noted`.

    Returns
    -------
    Run
        The cells with their outputs, up to and including the one that ended the run.
    """
    folder = Path(tempfile.mkdtemp(prefix="notebook-"))
    run = Run(folder=str(folder))
    try:
        if files is not None:
            shutil.copytree(files, folder, dirs_exist_ok=True)
        await _run_in(folder, run, cells, kernel, limit, pause, answers, frame, at_timeout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return run


async def _run_in(
    folder: Path,
    run: Run,
    cells: Sequence[NotebookNode],
    kernel: Kernel,
    limit: float,
    pause: float,
    answers: Sequence[str],
    frame: Frame | None,
    at_timeout: Callable[[], str | None],
) -> None:
    notebook = nbformat.v4.new_notebook(cells=[cell.copy() for cell in cells])
    client = NotebookClient(
        notebook,
        km=kernel.manager(),
        resources={"metadata": {"path": str(folder)}},
        allow_errors=True,
        iopub_timeout=_OUTPUT_TIMEOUT,
        startup_timeout=_START_TIMEOUT,
    )
    client.reset_execution_trackers()
    started = False
    try:
        # its log is not what is compared
        async with client.async_setup_kernel(env=dict(kernel.environment), stderr=subprocess.DEVNULL, cleanup_kc=True):
            started = True
            async with _background(_wake(client)), _background(_answer(client, answers)):
                if frame is not None:
                    run.outcome = await _run_unseen(client, frame.before, limit)
                if run.outcome == OK:
                    await _run_cells(client, run, limit, pause)
                if run.outcome == OK and frame is not None:
                    run.outcome = await _run_unseen(client, frame.after, limit)
            if run.outcome == TOO_LONG:
                run.noted = at_timeout()
            client.set_widgets_metadata()
            widgets = notebook.metadata.get("widgets", {})
            run.widgets = widgets.get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    except RuntimeError as error:  # what the manager and the client raise when a kernel does not come up
        if started:
            raise
        run.outcome = f"did not start: {error}"


async def _run_cells(client: NotebookClient, run: Run, limit: float, pause: float) -> None:
    for index, cell in enumerate(client.nb.cells):
        if cell.cell_type != "code":
            continue
        await asyncio.sleep(pause)
        client.timeout = max(1, round(limit - run.seconds))
        begun = time.monotonic()
        try:
            await client.async_execute_cell(cell, index)
        except CellTimeoutError:
            run.outcome = TOO_LONG
        except DeadKernelError:
            run.outcome = KERNEL_DIED
        seconds = time.monotonic() - begun
        run.seconds += seconds
        run.cells.append(Cell(index, cell.source, cell.get("execution_count"), cell.outputs, seconds))
        if run.outcome != OK:
            return


async def _run_unseen(client: NotebookClient, code: str, limit: float) -> str:
    """Run code that is not in the notebook; return the outcome."""
    channel: Any = client.kc
    message_id = await ensure_async(channel.execute(code, silent=True))
    try:
        reply = await asyncio.wait_for(client.async_wait_for_reply(message_id), limit)
    except TimeoutError:
        return TOO_LONG
    except DeadKernelError:
        return KERNEL_DIED
    content = {} if reply is None else reply["content"]
    return OK if content.get("status") == "ok" else f"{content.get('ename')}: {content.get('evalue')}"


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have *work* done until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _answer(client: NotebookClient, answers: Sequence[str]) -> None:
    """Answer what the kernel asks for on stdin, which nbclient refuses by itself."""
    channel: Any = client.kc
    channel.allow_stdin = bool(answers)
    for text in answers:
        await channel.get_stdin_msg(timeout=None)
        channel.input(text)


async def _wake(client: NotebookClient) -> None:
    """Look regularly at the channel that replies come on.

    For an `Output` widget nbclient sends on it while it waits there, which can take the event that would wake it: it
    would find the reply when the cell's time is up.
    """
    channel: Any = client.kc
    while True:
        await asyncio.sleep(_LOOK_INTERVAL)
        channel.shell_channel.socket.get(zmq.EVENTS)


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without what is meant for other kernels.

    ipykernel does not show what subprocesses print where pytest's variable is set.
    """
    foreign = ("SHAREDKERNEL_", "JPY_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
