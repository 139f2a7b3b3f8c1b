"""``sharedkernel lab``: JupyterLab with a shared device on this machine, all of it gone when JupyterLab ends."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from traitlets import Bool, Unicode

from sharedkernel.cli.base import StackCommandApp, say
from sharedkernel.errors import SharedKernelError
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack
from sharedkernel.services import stop_process
from sharedkernel.system.nvml import visible_gpus
from sharedkernel.system.processes import bound_command
from sharedkernel.system.signals import ended_by_signals, left_to_child
from sharedkernel.units import format_bytes

#: how long a notebook's session that was shut down can be brought back
_LINGER = "10m"
#: the device where there is no GPU, and how much of its memory is shared unless said
_PROCESSOR, _PROCESSOR_CAPACITY = "host", "4GiB"
#: among the examples
_FIRST_NOTEBOOK = "first_steps.ipynb"
#: options of JupyterLab's that say which folder it serves, or what it opens
_PLACE = re.compile(r"--(\w+\.)?(root_dir|notebook[-_]dir|preferred[-_]dir|default_url)\b")
#: seconds that JupyterLab may take to end after SIGTERM
_STOP_TIMEOUT = 20.0


class LabApp(StackCommandApp):
    """Runs JupyterLab in the foreground, between an executor's and a gateway's start and end."""

    name = "lab"
    description = """
        Open JupyterLab with the kernel "Shared GPU (PyTorch)" on a device of this machine.

        In a folder without notebooks it opens a first one of five cells, which stays there. What follows -- goes to
        `jupyter lab` as it is. Ctrl-C ends JupyterLab, and with it every session.
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
    )
    capacity = Unicode(
        help="How much of the device's memory to share, such as \"8GiB\". Default: all of a GPU's, 4GiB of the "
        "processor's."
    )

    no_first_notebook = Bool(False, help="Open no first notebook.")

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
            arguments = [
                f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}",
                *_shell_options(stack.directory),
                *self._first_notebook(),
                *self.extra_args,
            ]
            capacity = format_bytes(stack.status().device.capacity_bytes)
            say(
                f"{self.device} is shared, {capacity} of memory. JupyterLab starts now.\n"
                "  Use it       the kernel Shared GPU (PyTorch), in JupyterLab's launcher\n"
                "  Who uses it  the panel Shared GPU on JupyterLab's left, `sharedkernel top` in its terminals, or\n"
                f"               {stack.gateway_url} in a browser (token {stack.token(user)})\n"
                "  End          Ctrl-C: sessions and variables end with JupyterLab, notebooks stay"
            )
            # this environment first, whose `pip` is the one that counts
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
            environment = os.environ | stack.client_environment(user) | {"PATH": path}
            with left_to_child(signal.SIGINT):  # JupyterLab asks whether it is meant
                lab = subprocess.Popen(bound_command("jupyterlab", arguments), env=environment)
                try:
                    status = lab.wait()
                finally:
                    stop_process(lab, "JupyterLab", _STOP_TIMEOUT)
        if status > 0 and os.geteuid() == 0 and not any(word.startswith("--allow-root") for word in self.extra_args):
            # Some configuration may allow it, so it is not refused beforehand.
            say("JupyterLab does not run as root unless told to: `sharedkernel lab -- --allow-root`.")
        sys.exit(status if status >= 0 else 128 - status)

    def _first_notebook(self) -> list[str]:
        """Put a first notebook into a folder that has none, and return the option with which JupyterLab opens it."""
        from sharedkernel.demo import examples_directory

        if self.no_first_notebook or any(Path().glob("*.ipynb")):
            return []
        if any(_PLACE.match(word) or Path(word).exists() for word in self.extra_args):
            return []
        try:
            with Path(_FIRST_NOTEBOOK).open("xb") as file:
                file.write((examples_directory() / _FIRST_NOTEBOOK).read_bytes())
        except (OSError, SharedKernelError):  # a folder that is not the user's, such as the root of a container
            return []
        return [f"--LabApp.default_url=/lab/tree/{_FIRST_NOTEBOOK}"]


def _shell_options(directory: Path) -> list[str]:
    """Return options with which JupyterLab's terminals find this environment's commands, whatever a profile does.

    Jupyter starts login shells where it has no terminal itself, and the profiles that those read forget `PATH`; so does
    `conda init` in bash's own file. Others than bash start without a profile.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    if Path(shell).name == "bash":
        start = directory / "bashrc"
        start.write_text(f"[ ! -f ~/.bashrc ] || . ~/.bashrc\nPATH={quote(str(Path(sys.executable).parent))}:$PATH\n")
        shell = f"{shell} --rcfile {quote(str(start))}"
    return [f"--ServerApp.terminado_settings=shell_command={shell}"]
