"""What a page gets that comes to a kernel later."""

from __future__ import annotations

from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from tests.client.extension.server import JupyterServer

CELLS = "/sharedkernel/api/kernels/{}/cells"


def connect(server: JupyterServer, kernel: str) -> BlockingKernelClient:
    client = BlockingKernelClient(connection_file=str(server.runtime / f"kernel-{kernel}.json"))
    client.load_connection_file()
    client.start_channels(hb=False)  # a heartbeat that is late on a busy machine is no death
    client.wait_for_ready(timeout=60)
    return client


def run(server: JupyterServer, name: str, code: str) -> list[dict[str, Any]]:
    """Run *code* in a new kernel, and return what is kept of it."""
    kernel = server.ask("POST", "/api/kernels", {"name": name}).body["id"]
    client = connect(server, kernel)
    try:
        client.execute_interactive(code, timeout=60, output_hook=lambda message: None)
    finally:
        client.stop_channels()
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
