"""The relay's process: its command line, its signals, and the client whose life it shares."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import KERNEL_NAME, client_key
from sharedkernel.relay.relay import Relay
from sharedkernel.relay.sockets import ConnectionInfo

log = logging.getLogger(__name__)

#: seconds between looks at whether the client lives
PARENT_INTERVAL = 1.0


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
    told |= {"KERNEL_WORKING_DIR": os.getcwd(), "KERNEL_CLIENT_KEY": client_key(connection_file, key)}
    if notebook := environment.get("JPY_SESSION_NAME"):
        told["KERNEL_NOTEBOOK"] = notebook
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Run a relay until its client ends it, and return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sharedkernel.relay",
        description="The kernel that passes a notebook on to a shared device.",
    )
    parser.add_argument("-f", dest="connection_file", type=Path, required=True, help="what the Jupyter client wrote")
    parser.add_argument("--name", default=KERNEL_NAME, help="kernelspec whose gateway and token are used")
    parser.add_argument("--environment", default="", help="the gateway's Python environment; empty: its usual one")
    # as ipykernel does: `jupyter run FILE` names the file to the kernel, too
    options, _ = parser.parse_known_args(argv)
    logging.basicConfig(level=logging.WARNING, format="[%(name)s] %(message)s")
    try:
        connection = ConnectionInfo.from_file(options.connection_file)
        environment = session_environment(options.connection_file, connection.key, os.environ)
        return asyncio.run(_run(connection, options, environment))
    except ConfigError as error:
        print(f"sharedkernel relay: {error}", file=sys.stderr)  # noqa: T201
        return 2


async def _run(connection: ConnectionInfo, options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    relay = Relay(connection, name=options.name, python=options.environment, environment=environment)
    loop = asyncio.get_running_loop()
    # Windows has no such handlers; its clients interrupt by message, which the kernelspec asks all of them to do.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, relay.interrupt)
        loop.add_signal_handler(signal.SIGTERM, relay.stop)
    if "JPY_PARENT_PID" in os.environ:
        _watch_parent(loop, os.getppid(), relay.stop)
    return await relay.run()


def _watch_parent(loop: asyncio.AbstractEventLoop, parent: int, stop: Callable[[], None]) -> None:
    """Call *stop* when the client is gone: nobody is left to end this process, and the session waits for the next."""
    if os.getppid() != parent:
        stop()
    else:
        loop.call_later(PARENT_INTERVAL, _watch_parent, loop, parent, stop)
