"""Processes and kernels for the tests of what people start."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager

from sharedkernel.local_stack import LocalStack
from tests.asking import ask
from tests.client.relay.support import Notebook
from tests.command import run_here
from tests.status.documents import to_json

COMMAND = [sys.executable, "-m", "sharedkernel"]
#: seconds that anything in these tests may take, on a busy machine
PATIENCE = 60.0


def run(
    stack: LocalStack, user: str, *arguments: str, status: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sharedkernel`` as *user*, in 80 columns."""
    done = run_here(*arguments, **stack.client_environment(user) | {"COLUMNS": "80"} | environment)
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


def entries(stack: LocalStack, user: str) -> list[dict[str, Any]]:
    """Return what status says of the sessions of *user*."""
    return [entry for entry in to_json(stack.status())["sessions"] if entry["user"] == user]


def end_sessions(stack: LocalStack) -> None:
    """End what is left: a server that is short of time does not wait for its kernels to end their sessions.

    The next test would see them beside its own, also those that linger.
    """
    for session in to_json(stack.status())["sessions"]:
        url = f"{stack.gateway_url}/api/kernels/{session['id']}?linger=0"
        ask(url, stack.token(session["user"]), "DELETE")  # which is refused if it has just ended
    wait_until(lambda: to_json(stack.status())["sessions"] == [], "all sessions have ended")


def start_session(stack: LocalStack, user: str, **model: Any) -> str:
    """Start a session that neither a relay nor a Jupyter server knows, with more of Jupyter's model; return its id."""
    url, body = f"{stack.gateway_url}/api/kernels", {"name": "shared-gpu", **model}
    answer = ask(url, stack.token(user), "POST", body, timeout=3 * PATIENCE)
    assert answer.status == 201, answer
    return str(answer.body["id"])


@contextlib.contextmanager
def shared_kernel(stack: LocalStack, user: str, name: str = "work.ipynb") -> Iterator[Notebook]:
    """Give a notebook of *user* with a new session, through the stack's kernelspec."""
    clients = stack.directory / "clients"
    clients.mkdir(exist_ok=True)
    notebook = Notebook(stack.gateway_url, stack.token(user), transport="ipc")
    notebook.manager.connection_file = str(clients / f"{user}-{name}.json")
    notebook.manager.kernel_spec_manager = KernelSpecManager(
        kernel_dirs=[str(stack.kernels_directory)], ensure_native_kernel=False
    )
    notebook.environment["JPY_SESSION_NAME"] = name
    with notebook:
        yield notebook
