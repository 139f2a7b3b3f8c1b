"""What a page gets that comes to a kernel later."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_events import EventLogger
from jupyter_server import DEFAULT_EVENTS_SCHEMA_PATH
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from sharedkernel.client.extension.recorder import KERNEL_ACTIONS, Recorder
from tests.client.extension.kernel_page import KernelPage
from tests.client.extension.server import JupyterServer

CELLS = "/sharedkernel/api/kernels/{}/cells"


def run(server: JupyterServer, name: str, code: str) -> list[dict[str, Any]]:
    """Run *code* in a new kernel, and return what is kept of it."""
    kernel = server.ask("POST", "/api/kernels", {"name": name}).body["id"]
    with KernelPage(server, kernel) as page:
        page.run(code)
    answer = server.ask("GET", CELLS.format(kernel)).body
    while any(cell["open"] for cell in answer["cells"]):  # the server hears of its end on a connection of its own
        answer = server.ask("GET", CELLS.format(kernel)).body
    assert server.ask("GET", f"{CELLS.format(kernel)}?after={answer['version']}").body["cells"] == []
    server.ask("DELETE", f"/api/kernels/{kernel}")
    assert server.ask("GET", CELLS.format(kernel)).body == {"version": 0, "cells": []}
    return list(answer["cells"])


def test_a_cell_s_outputs_are_kept(ada: JupyterServer) -> None:
    """From the kernel's first cell on, until it is shut down."""
    (cell,) = run(ada, "shared-gpu", "print('one', flush=True); 1 + 1")
    assert cell["code"].startswith("print")
    assert [output["output_type"] for output in cell["outputs"]] == ["stream", "execute_result"]
    assert cell["open"] is False


def test_other_kernels_are_left_alone(ada: JupyterServer) -> None:
    """What is not shared is not our business."""
    assert run(ada, "python3", "1") == []


def test_a_wrong_version_is_refused(ada: JupyterServer) -> None:
    for after in ("-1", "x"):
        assert ada.ask("GET", f"{CELLS.format('some')}?after={after}").status == 400


class _Server(AsyncMappingKernelManager):
    """Jupyter's kernels, of which one is a relay that nobody has started."""

    async def restarted(self, events: EventLogger, kernel_id: str) -> None:
        """Say that a kernel was restarted, and wait until all listeners have heard it."""
        events.emit(
            schema_id=KERNEL_ACTIONS, data={"action": "restart", "kernel_id": kernel_id, "status": "success", "msg": ""}
        )
        await events.gather_listeners()


async def test_no_other_socket_is_closed_with_a_kernels_own(tmp_path: Path) -> None:
    """Sockets that Jupyter opens later, where one of the recorder's was in memory, are left alone."""
    server, events = _Server(), EventLogger()
    events.register_event_schema(DEFAULT_EVENTS_SCHEMA_PATH / "kernel_actions" / "v1.yaml")
    kernel = AsyncIOLoopKernelManager(parent=server, context=server.context, connection_file=str(tmp_path / "kernel"))
    kernel._kernel_spec = KernelSpec(argv=["python", "-m", "sharedkernel.relay"])
    kernel.write_connection_file()
    server._kernels["one"] = kernel
    recorder = Recorder(server, events)
    context = zmq.Context.shadow(server.context)
    gc.disable()  # what is left behind of a socket stays until another one is where it was
    try:
        await server.restarted(events, "one")
        address = recorder._followed["one"].socket._socket.underlying
        recorder.close()
        while (other := context.socket(zmq.SUB)).underlying != address:
            other.close(linger=0)
            await asyncio.sleep(0.001)  # its context's thread closes it, and has room for so many
    finally:
        gc.enable()
    gc.collect()
    assert not other.closed
    other.close()
    kernel.cleanup_connection_file()
