"""The relay's process: its command line, the order of its start, its signals, and the client whose life it shares.

The command line is read here, because importing argparse would take longer than listening for the client:

=================  ==================================================================================================
``-f``             path of the connection file that the Jupyter client wrote
``--name``         kernelspec whose gateway and token are used
``--environment``  the gateway's Python environment
``--listening``    descriptors of the sockets that listen for the client already, separated by commas; see `start.py`
=================  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from sharedkernel.client.gateway.connection import SessionRequest
from sharedkernel.client.relay.connection_file import ConnectionInfo
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import FOLDER_VARIABLE, KERNEL_NAME, client_key

if TYPE_CHECKING:
    import asyncio

#: the client's process, as soon as anything of this runs: it may end while the rest is imported
_PARENT = os.getppid()
#: seconds between looks at whether the client lives
PARENT_INTERVAL = 1.0
#: seconds that the request for a session may take to leave before the rest is imported; a near gateway needs one or two
#: milliseconds
_SENDING = 0.02


def main(arguments: Sequence[str]) -> int:
    """Run a relay until its client ends it, and return the exit code."""
    # What follows no option is ignored, as by ipykernel: `jupyter run FILE` names the file to the kernel, too.
    options = dict(pairwise(arguments))
    try:
        if "-f" not in options:
            raise ConfigError("which connection file? Name what the Jupyter client wrote: -f FILE.")
        return _run(options, ConnectionInfo.from_file(options["-f"], options.get("--listening", "")))
    except ConfigError as error:
        print(f"sharedkernel relay: {error}", file=sys.stderr)  # noqa: T201
        return 2


def session_environment(connection_file: Path, key: bytes, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a gateway is told about the notebook when it is asked for a session.

    Parameters
    ----------
    connection_file, key
        Its path and its secret stay the same for all kernel processes that a client starts for one notebook, so
        together they make the key by which a relay finds the session of the one before it. The secret itself stays
        here.
    environment
        This process's environment.
    """
    # As Jupyter's own gateway clients do.
    told = {name: value for name, value in environment.items() if name.startswith("KERNEL_")}
    folder = told.pop(FOLDER_VARIABLE, None) or os.getcwd()
    told |= {"KERNEL_WORKING_DIR": folder, "KERNEL_CLIENT_KEY": client_key(connection_file, key)}
    if notebook := environment.get("JPY_SESSION_NAME"):
        told["KERNEL_NOTEBOOK"] = notebook
    return told


def _run(options: Mapping[str, str], connection: ConnectionInfo) -> int:
    logging.basicConfig(level=logging.WARNING, format="[%(name)s] %(message)s")
    if _was_gone():
        return 0
    environment = session_environment(Path(options["-f"]), connection.key, os.environ)

    def ask() -> SessionRequest:
        return SessionRequest(options.get("--name", KERNEL_NAME), environment, python=options.get("--environment", ""))

    request = ask()
    request.sent.wait(_SENDING)
    # Not at the top: asyncio, zmq and what needs them are imported while the gateway starts the session.
    import asyncio

    from sharedkernel.client.relay.relay import Relay

    async def main() -> int:
        relay = Relay(connection, ask, request)
        loop = asyncio.get_running_loop()
        # Windows has no such handlers; its clients interrupt by message, which the kernelspec asks all of them to do.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, relay.interrupt)
            loop.add_signal_handler(signal.SIGTERM, relay.stop)
        if "JPY_PARENT_PID" in os.environ:
            _watch_parent(loop, relay.stop)
        return await relay.run()

    # On Windows, the other kind of event loop could not watch zmq's sockets.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main())


def _was_gone() -> bool:
    """Return whether the client, which names itself, had ended before this process looked for it."""
    named = os.environ.get("JPY_PARENT_PID", "")
    if not named.isdecimal() or int(named) == _PARENT or sys.platform == "win32":
        return False
    with contextlib.suppress(PermissionError):
        try:
            os.kill(int(named), 0)
        except ProcessLookupError:
            return True
    return _PARENT == 1


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call *stop* when the client is gone: nobody is left to end this process, and the session waits for the next."""
    if os.getppid() != _PARENT:
        stop()
    else:
        loop.call_later(PARENT_INTERVAL, _watch_parent, loop, stop)
