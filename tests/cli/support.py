"""Processes and kernels for the tests of what people start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

from sharedkernel.local_stack import LocalStack
from tests.readiness import wait_until_ready
from tests.status.documents import to_json

COMMAND = [sys.executable, "-m", "sharedkernel"]
#: seconds that anything in these tests may take, on a busy machine
PATIENCE = 60.0


def run(
    stack: LocalStack, user: str, *arguments: str, status: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel`` as *user*, in 80 columns."""
    variables = os.environ | stack.client_environment(user) | {"COLUMNS": "80"} | environment
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE, env=variables, check=False
    )
    assert status in (None, done.returncode), done
    return done


def wait_until(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Return once *condition* holds; fail after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.02)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Return the processes that belong to a stack: *directory* is on their command line or among their files."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(str(directory) in part for part in process.cmdline())
            if named or any(str(directory) in file.path for file in process.open_files()):
                found.append(process)
    return found


def end_sessions(stack: LocalStack) -> None:
    """End what is left: a server that is short of time does not wait for its kernels to end their sessions.

    The next test would see them beside its own, also those that linger.
    """
    for session in to_json(stack.status())["sessions"]:
        with contextlib.suppress(urllib.error.HTTPError):  # it has just ended
            _ask(stack, session["user"], "DELETE", f"/api/kernels/{session['id']}?linger=0")
    wait_until(lambda: to_json(stack.status())["sessions"] == [], "all sessions have ended")


def _ask(stack: LocalStack, user: str, method: str, path: str) -> Any:
    headers = {"Authorization": f"token {stack.token(user)}"}
    request = urllib.request.Request(stack.gateway_url + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.loads(response.read() or b"null")


@contextlib.asynccontextmanager
async def shared_kernel(stack: LocalStack, user: str, notebook: str = "work.ipynb") -> AsyncIterator[AsyncKernelClient]:
    """Give a client of a new session of *user*, through the kernelspec, as a notebook would have it."""
    clients = stack.directory / "clients"
    clients.mkdir(exist_ok=True)
    manager = AsyncKernelManager(
        kernel_name="shared-gpu",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(stack.kernels_directory)], ensure_native_kernel=False),
        connection_file=str(clients / f"{user}-{notebook}.json"),
        transport="ipc",
        ip=str(clients / f"{user}-{notebook}"),
    )
    await manager.start_kernel(env=os.environ | stack.client_environment(user) | {"JPY_SESSION_NAME": notebook})
    client = manager.client()
    client.start_channels()
    try:
        await wait_until_ready(client, PATIENCE)
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel()
