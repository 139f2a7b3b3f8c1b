"""A stock ipykernel, to compare a session with."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.readiness import wait_until_blocking_ready
from tests.session.harness import PATIENCE, SessionUnderTest, reply_of

#: lines of torch's logs and of Kineto's, which have times in them
_LOGGED = re.compile(r"USDT:|[WI]\d{4} ")
_CELL = re.compile(r"Cell In\[\d+\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def stock_kernel(directory: Path) -> Iterator[BlockingKernelClient]:
    """Run an ipykernel that has imported torch, with sockets under *directory*.

    It writes messages by Python's json, as sessions do: with orjson in the environment jupyter_client would use that.
    """
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(directory / "stock"))
    json = [f"--Session.{name}=json" for name in ("packer", "unpacker")]
    manager.start_kernel(cwd="/", env=os.environ | {"IPYTHONDIR": str(directory / "ipython")}, extra_arguments=json)
    client = manager.client()
    client.start_channels(hb=False)
    try:
        wait_until_blocking_ready(client, PATIENCE)
        reply_of(client, client.execute("import torch"))
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        client.context.term()


def run_on_both(session: SessionUnderTest, stock: BlockingKernelClient, code: str) -> tuple[Any, Any]:
    """Run a cell here and there; return status, printed lines and traceback of both, without what is never the same."""
    return _comparable(session.run(code)), _comparable(reply_of(stock, stock.execute(code)))


def _comparable(reply: dict[str, Any]) -> tuple[str, list[str], str]:
    lines = [line for line in reply["text"].splitlines() if not _LOGGED.match(line)]
    trace = _COLOURS.sub("", "\n".join(reply.get("traceback", [])))
    return reply["status"], lines, _CELL.sub("Cell In[N]", trace)
