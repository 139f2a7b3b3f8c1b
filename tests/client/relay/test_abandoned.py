"""What programs leave that start kernels and are killed, or kill them: nothing that stays, and nothing in their way."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import entries
from tests.client.relay.support import TIMEOUT, Notebook, wait_until
from tests.warm_stack import WarmStack

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")]

#: starts a kernel, and is killed so many seconds later
_KILLED_EARLY = """
import os, signal, sys, time
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="shared-gpu")
manager.start_kernel(env=dict(os.environ))
print(manager.provisioner.pid, flush=True)
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def stack(private_jupyter: object) -> Iterator[LocalStack]:
    quotas = {"users": {"mary": {"sessions": 2}, "grace": {"sessions": 1}}}
    config = "c.SharedKernelGateway.unclaimed_seconds = 3\nc.SessionKernels.cull_interval = 1"
    with WarmStack(users=["mary", "grace", "ada"], capacity="1GiB", quotas=quotas, config=config) as stack:
        yield stack


def kill(notebook: Notebook) -> None:
    """Kill the kernel's process, as `shutdown_kernel(now=True)` and the end of a job do."""
    relay = psutil.Process(notebook.pid)
    notebook.manager.shutdown_kernel(now=True)
    relay.wait(TIMEOUT)


def test_killed_kernels_give_way_at_the_limit_and_end(stack: LocalStack) -> None:
    """Six in turn where two are allowed; a cell that runs on runs for nobody."""
    for code in ("print('ran')", "print('ran', flush=True)\nimport time\ntime.sleep(600)") * 3:
        with Notebook(stack.gateway_url, stack.token("mary")) as notebook:
            notebook.wait_for_output(notebook.client.execute(code), "ran")
            kill(notebook)
    assert len(entries(stack, "mary")) <= 2
    wait_until(lambda: not entries(stack, "mary"))


def test_a_notebook_whose_kernel_was_killed_is_waited_for(stack: LocalStack) -> None:
    """Its user opens it again; it is in the way of others until then, as ever."""
    with Notebook(stack.gateway_url, stack.token("grace")) as notebook:
        kill(notebook)
    notebook = Notebook(stack.gateway_url, stack.token("grace"))
    notebook.environment["JPY_SESSION_NAME"] = "/home/grace/a.ipynb"
    with notebook:
        assert notebook.run("x = 1").status == "ok"
        kill(notebook)
        with Notebook(stack.gateway_url, stack.token("ada")) as program:  # one of a program's, killed later, and ended
            kill(program)
        wait_until(lambda: not entries(stack, "ada"))
        assert len(entries(stack, "grace")) == 1
        with Notebook(stack.gateway_url, stack.token("grace")) as other:
            assert "grace may have 1 session" in other.run("1").error


def test_a_program_whose_machine_sleeps_keeps_its_session(stack: LocalStack) -> None:
    """It is silent, and has not gone."""
    with Notebook(stack.gateway_url, stack.token("ada")) as sleeping:
        assert sleeping.run("x = 41").status == "ok"
        relay = psutil.Process(sleeping.pid)
        relay.suspend()
        try:
            with Notebook(stack.gateway_url, stack.token("ada")) as program:  # killed later, and ended
                assert program.run("1").status == "ok"
                kill(program)
            wait_until(lambda: len(entries(stack, "ada")) == 1)
        finally:
            relay.resume()
        assert sleeping.run("print(x + 1)").text() == "42\n"


def test_clients_that_are_killed_early_leave_nothing(stack: LocalStack) -> None:
    """Whatever their kernels' processes were doing at that moment."""
    environment = Notebook(stack.gateway_url, stack.token("ada")).environment
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", _KILLED_EARLY, delay], stdout=subprocess.PIPE, text=True, env=environment
        )
        for delay in ("0.0", "0.05", "0.2")
    ]
    for client in clients:
        relay = Path("/proc", client.communicate(timeout=TIMEOUT)[0].strip())
        assert client.returncode == -signal.SIGKILL
        wait_until(lambda relay=relay: not relay.exists())
    wait_until(lambda: not entries(stack, "ada"))
