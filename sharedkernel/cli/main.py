"""The ``sharedkernel`` command: finds the sub-command's application and hands the rest of the line to it.

Applications are imported only when asked for, so that ``sharedkernel status`` starts without torch or Jupyter's
server, and so that a machine with the user's side alone gets a sentence instead of an import error.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from traitlets.config import Application
from traitlets.utils.importstring import import_item

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.distribution import install_hint, skip_address_grammar
from sharedkernel.errors import SharedKernelError

#: what each extra brings, by the module that shows that it is there
_EXTRAS = {
    "host": ("ipykernel", "jupyter_server", "numpy", "psutil", "torch"),
    "lab": ("ipykernel", "jupyter_server", "torch", "jupyterlab", "nbclient", "sklearn"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command."""

    #: dotted name of its traitlets application, in this package
    path: str
    #: one line for the list of commands
    help: str
    #: the extra that it needs, which also means Linux; None: works with the user's side, anywhere
    extra: str | None = None

    @property
    def application(self) -> str:
        """Its application's full name."""
        return f"sharedkernel.{self.path}"


COMMANDS = {
    "demo": Command(
        "cli.demo.DemoApp", "Run three people's notebooks on one device at the same time, and report.", "lab"
    ),
    "lab": Command("cli.lab.LabApp", "Open JupyterLab with a shared device on this machine.", "lab"),
    "host": Command(
        "cli.host.HostApp", "Serve all GPUs of this machine: keep an executor for each and a gateway running.", "host"
    ),
    "gateway": Command(
        "gateway.app.SharedKernelGateway", "Serve notebooks of many users from this machine's executor.", "host"
    ),
    "executor": Command("executor.app.ExecutorApp", "Own one device and run everybody's sessions on it.", "host"),
    "cluster": Command(
        "cluster.commands.ClusterCommandApp",
        "Serve notebooks from the nodes of a Ray cluster, and drain hosts.",
        "host",
    ),
    "install": Command("cli.install.InstallApp", 'Add the kernel "Shared GPU" to this Jupyter.'),
    "uninstall": Command("cli.install.UninstallApp", "Remove it, and your token, from this Jupyter."),
    "token": Command("gateway.auth.token_command.TokenApp", "Add, list and remove users' tokens.", "host"),
    "status": Command("cli.sessions.StatusApp", "Show who uses what of the device, and who waits for what."),
    "top": Command("cli.sessions.TopApp", "The same, live; sort, filter, offload and stop."),
    "sessions": Command("cli.sessions.SessionsApp", "List sessions: yours, or everybody's."),
    "stop": Command("cli.sessions.StopApp", "Shut sessions down."),
    "offload": Command("cli.sessions.OffloadApp", "Move idle sessions' memory off the device, so that others have it."),
    "quota": Command("cli.quota.QuotaApp", "Show what each user may use; for admins, change it."),
    "policy": Command("cli.quota.PolicyApp", "Show by which policy the devices serve; for admins, change it."),
    "class": Command(
        "cli.classroom.ClassApp", "Run a class: users with invitations, limits and tokens that end together."
    ),
    "files": Command("cli.files.FilesApp", "List, upload, download and remove your files on the gateway's machine."),
    "ports": Command("cli.ports.PortsApp", "List the ports of your programs on the host, and reach them from here."),
    "shelf": Command("cli.shelf.ShelfApp", "List what is on your shelf, or everybody's, and take it off."),
    "trace": Command(
        "cli.trace.app.TraceApp", "Write who ran in which lane and who waited as a file that Perfetto opens."
    ),
    "simulate": Command("cli.simulate.app.SimulateApp", "Run the scheduler on traces under simulated time.", "host"),
    "bench": Command("cli.bench.BenchApp", "Measure what sharing costs and what it gives.", "lab"),
}


def _check_extra(name: str, extra: str) -> None:
    """End this process with a sentence if the command *name*, which needs *extra*, cannot run here."""
    if sys.platform != "linux":
        fail(
            f"`sharedkernel {name}` runs on Linux only and this is {sys.platform}; "
            "run it on the machine with the device, and `sharedkernel install` here."
        )
    missing = [module for module in _EXTRAS[extra] if importlib.util.find_spec(module) is None]
    if missing:
        fail(f"`sharedkernel {name}` needs {', '.join(missing)}; install the packages with {install_hint(extra)}.")


class SharedKernelApp(CommandApp):
    """Chooses the sub-command; see :data:`COMMANDS`."""

    name = "sharedkernel"
    description = "One GPU, many notebooks: a shared-GPU kernel gateway for Jupyter and PyTorch."
    examples = """
        sharedkernel demo                 # three notebooks share this machine's device
        sharedkernel lab                  # JupyterLab with the kernel "Shared GPU"
        sharedkernel top                  # who uses what, live
        sharedkernel gateway --help       # help for one command
    """
    subcommand_description = "Run `{app} COMMAND --help` for a command's options and an example."
    subcommands: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        name: (command.application, command.help) for name, command in COMMANDS.items()
    }
    #: so that an unknown command gets a sentence of its own
    accepts_arguments = True

    _chosen: tuple[str, list[str]] | None = None

    def initialize_subcommand(self, subc: str, argv: Sequence[str] | None = None) -> None:
        """Remember the command: it starts only after this application is done with the line."""
        self._chosen = (subc, list(argv or []))

    def start(self) -> None:
        """Run the chosen command.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 for a command that cannot run on this machine.
        """
        if self._chosen is None:
            if self.extra_args:
                known = ", ".join(COMMANDS)
                fail(f"there is no command {self.extra_args[0]!r}; the commands are {known}.", status=2)
            self.print_help()
            sys.exit(2)
        name, argv = self._chosen
        command = COMMANDS[name]
        if command.extra is not None:
            _check_extra(name, command.extra)
        if command.extra == "host":
            from sharedkernel.system.processes import set_name  # on Linux alone

            set_name(f"sk-{name}")
        application: type[Application] = import_item(command.application)
        application.launch_instance(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line *argv* (default: this process's)."""
    skip_address_grammar()
    application = SharedKernelApp()
    try:
        application.initialize(list(sys.argv[1:] if argv is None else argv))
        application.start()
        sys.stdout.flush()
    except SharedKernelError as error:
        fail(str(error))
    except BrokenPipeError:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # It is standard output that was closed, as by `head`; nothing is written there any more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
