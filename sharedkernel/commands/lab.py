"""``sharedkernel lab``: JupyterLab with a shared device on this machine, all of it gone when JupyterLab ends."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys

from sharedkernel import lifetime
from sharedkernel.commands.stack_options import StackCommandApp
from sharedkernel.local_stack import LocalStack
from sharedkernel.relay.gateway import KERNEL_NAME
from sharedkernel.signals import ended_by_signals, left_to_child

#: seconds that JupyterLab may take to end after SIGTERM
_STOP_TIMEOUT = 20.0


class LabApp(StackCommandApp):
    """Runs JupyterLab in the foreground, between an executor's and a gateway's start and end."""

    name = "lab"
    description = """
        Open JupyterLab with the kernel "Shared GPU (PyTorch)" on a device of this machine.

        What follows -- goes to `jupyter lab` as it is. Ctrl-C ends JupyterLab, and with it every session.
    """
    examples = """
        sharedkernel lab
        sharedkernel lab --capacity 8GiB
        sharedkernel lab -- --no-browser --port 9000
    """
    accepts_arguments = True

    def start(self) -> None:
        """Run until JupyterLab ends; the exit code is its own."""
        user = getpass.getuser()
        with ended_by_signals(), LocalStack(users=[user], **self.stack_options()) as stack:
            environment = os.environ | stack.client_environment(user)
            arguments = [f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}", *self.extra_args]
            with left_to_child(signal.SIGINT):  # JupyterLab asks whether it is meant
                lab = subprocess.Popen(lifetime.command("jupyterlab", arguments), env=environment)
                try:
                    status = lab.wait()
                finally:
                    _end(lab)
        sys.exit(status if status >= 0 else 128 - status)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End *process*, kindly first; returns once it is reaped."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
