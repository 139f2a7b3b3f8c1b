"""``sharedkernel lab``: JupyterLab with a shared device on this machine, all of it gone when JupyterLab ends."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from traitlets import Unicode

from sharedkernel.cli.options import StackCommandApp
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack
from sharedkernel.services import stop_process
from sharedkernel.system import lifetime
from sharedkernel.system.nvml import visible_gpus
from sharedkernel.system.signals import ended_by_signals, left_to_child

#: how long a notebook's session that was shut down can be brought back
_LINGER = "10m"
#: the device where there is no GPU, and how much of its memory is shared unless said
_PROCESSOR, _PROCESSOR_CAPACITY = "host", "4GiB"
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
        sharedkernel lab --device host --capacity 8GiB
        sharedkernel lab -- --no-browser --port 9000
    """
    accepts_arguments = True

    device = Unicode(
        help="The device to share: `cuda:N`, an NVIDIA GPU, or `host`, the processor. Default: the first GPU, or the "
        "processor if there is none."
    ).tag(config=True)
    capacity = Unicode(
        help="How much of the device's memory to share, such as \"8GiB\". Default: all of a GPU's, 4GiB of the "
        "processor's."
    ).tag(config=True)

    def remedy(self, argv: Sequence[str]) -> str:
        """Return where JupyterLab's own options go, if *argv* has any before the ``--``."""
        foreign: list[str] = []
        is_foreign = False
        for word in argv[: [*argv, "--"].index("--")]:
            if word.startswith("--"):
                name = word.removeprefix("--").partition("=")[0]
                is_foreign = name not in self.aliases and name not in self.flags
            if is_foreign:  # an option, or its value
                foreign.append(word)
        if not foreign:
            return super().remedy(argv)
        return f"what is for JupyterLab goes behind `--`, as in `sharedkernel lab -- {' '.join(foreign)}`"

    def start(self) -> None:
        """Run until JupyterLab ends; the exit code is its own."""
        user = getpass.getuser()
        self.device = self.device or next(iter(visible_gpus(os.environ)), _PROCESSOR)
        if self.device == _PROCESSOR:
            self.capacity = self.capacity or _PROCESSOR_CAPACITY
        options = {"quotas": {"default": {"linger": _LINGER}}, **self.stack_options()}
        with ended_by_signals(), LocalStack(users=[user], **options) as stack:
            print(  # noqa: T201
                f"sharedkernel: {self.device} is shared at {stack.gateway_url} (token for its page: "
                f"{stack.token(user)}); pick the kernel Shared GPU in JupyterLab, which starts now. All ends with it.",
                file=sys.stderr,
            )
            environment = os.environ | stack.client_environment(user) | {"PATH": _path_with_commands()}
            arguments = [f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}", *self.extra_args]
            with left_to_child(signal.SIGINT):  # JupyterLab asks whether it is meant
                lab = subprocess.Popen(lifetime.command("jupyterlab", arguments), env=environment)
                try:
                    status = lab.wait()
                finally:
                    stop_process(lab, "JupyterLab", _STOP_TIMEOUT)
        if status > 0 and os.geteuid() == 0 and not any(word.startswith("--allow-root") for word in self.extra_args):
            # Some configuration may allow it, so it is not refused beforehand.
            print(  # noqa: T201
                "sharedkernel: JupyterLab does not run as root unless told to: `sharedkernel lab -- --allow-root`.",
                file=sys.stderr,
            )
        sys.exit(status if status >= 0 else 128 - status)


def _path_with_commands() -> str:
    """Return where programs are looked for, so that JupyterLab's terminals know the commands of this environment."""
    place = str(Path(sys.executable).parent)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(places if place in places else [place, *places])
