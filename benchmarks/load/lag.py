"""How long the gateway's event loop lets others wait: ``python -m benchmarks.load.lag HOST PORT``.

A process of its own, so that the crowd's client does not delay what is measured: it asks for ``/api``, which touches
nothing, every 50 ms over one connection, until its standard input ends, and prints all answers' times as JSON. That
counts what the network and a busy machine add, too: it is no less than the loop's lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import sys
import time
from collections.abc import AsyncIterator

_INTERVAL = 0.05


def main(host: str, port: int) -> None:
    """Ask until standard input ends, then print the seconds of each answer."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.connect()
    seconds = []
    while not select.select([sys.stdin], [], [], _INTERVAL)[0]:
        begun = time.perf_counter()
        connection.request("GET", "/api")
        connection.getresponse().read()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds))  # noqa: T201


@contextlib.asynccontextmanager
async def measured(url: str) -> AsyncIterator[list[float]]:
    """Measure the server at *url* during the block; the seconds of its answers are in the list afterwards."""
    host, _, port = url.rpartition("/")[2].partition(":")
    probe = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.load.lag", host, port,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    seconds: list[float] = []
    try:
        yield seconds
    finally:
        output, _ = await probe.communicate(b"")  # closes its standard input
        if probe.returncode == 0:
            seconds += json.loads(output)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
