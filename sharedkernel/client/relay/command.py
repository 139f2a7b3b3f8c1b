"""The relay's command line, read and carried out so far that the rest can be imported meanwhile.

What a kernelspec starts is read here, because importing argparse would take longer than listening for the client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sharedkernel.client.relay.connection_file import ConnectionInfo, Options
from sharedkernel.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Run a relay until its client ends it, and return the exit code."""
    options = _read_kernelspec(arguments) or _parse(arguments)
    try:
        connection = ConnectionInfo.from_file(options.connection_file)
    except ConfigError as error:
        print(f"sharedkernel relay: {error}", file=sys.stderr)  # noqa: T201
        return 2
    # Not at the top: it imports asyncio.
    from sharedkernel.client.relay.app import run

    return run(options, connection)


def _read_kernelspec(arguments: Sequence[str]) -> Options | None:
    """Read what a kernelspec of ours starts; return None where it is anything else."""
    names = {"-f": "connection_file", "--name": "name", "--environment": "environment", "--listening": "listening"}
    values = {}
    for option, value in zip(arguments[::2], arguments[1::2], strict=False):
        if option not in names or value.startswith("-"):
            return None
        values[names[option]] = value
    return Options(**values) if len(arguments) % 2 == 0 and "connection_file" in values else None


def _parse(arguments: Sequence[str]) -> Options:
    import argparse

    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sharedkernel.relay",
        description="The kernel that passes a notebook on to a shared device.",
    )
    parser.add_argument("-f", dest="connection_file", required=True, help="what the Jupyter client wrote")
    parser.add_argument("--name", help="kernelspec whose gateway and token are used")
    parser.add_argument("--environment", default="", help="the gateway's Python environment; empty: its usual one")
    parser.add_argument("--listening", default="", help=argparse.SUPPRESS)
    # as ipykernel does: `jupyter run FILE` names the file to the kernel, too
    options, _ = parser.parse_known_args(arguments)
    return Options(**vars(options))
