"""The kernelspec that starts a relay; `sharedkernel install` writes it, see `cli/install.py`.

It names `sharedkernel.relay`, as the kernelspecs of every version do: a folder of Jupyter keeps one for years.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sharedkernel.client.relay import start
from sharedkernel.jupyter.names import DISPLAY_NAME, KERNEL_NAME, LOGOS

#: runs a module, but listens first; "{resource_dir}" is the kernelspec's folder, where a copy of the file is
_START = ("-P", "-S", "{resource_dir}/start.py")
_RELAY = "sharedkernel.relay"


def write_kernelspec(
    directory: Path,
    *,
    name: str = KERNEL_NAME,
    display_name: str = DISPLAY_NAME,
    python: str = sys.executable,
    environment: str = "",
) -> None:
    """Write a kernelspec that starts a relay.

    It holds no address and no token: those come from the environment or from what `sharedkernel install` keeps.

    Parameters
    ----------
    directory
        Where its files go, such as ``share/jupyter/kernels/shared-gpu``; created where missing.
    name
        Its name; says which kept address and token the relay uses.
    display_name
        What a launcher shows.
    python
        The interpreter that runs the relay; needs this package.
    environment
        The gateway's Python environment that sessions get; empty: its usual one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    named = [] if name == KERNEL_NAME else ["--name", name]
    named += ["--environment", environment] if environment else []
    spec = {
        "argv": [python, *_START, _RELAY, "-f", "{connection_file}", *named],
        "display_name": display_name,
        "language": "python",
        # By message, not by signal: it reaches the session in order with what the client sent before it, from any
        # operating system.
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    }
    (directory / "start.py").write_bytes(Path(start.__file__).read_bytes())
    (directory / "kernel.json").write_text(json.dumps(spec, indent=2) + "\n")
    for logo in LOGOS.iterdir():
        (directory / logo.name).write_bytes(logo.read_bytes())


def is_of(directory: Path, name: str) -> bool:
    """Return whether a kernelspec starts relays to the gateway that is kept under *name*."""
    try:
        argv = json.loads((directory / "kernel.json").read_text())["argv"]
        kept = argv[argv.index("--name") + 1] if "--name" in argv else KERNEL_NAME
        return _RELAY in argv and kept == name
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False
