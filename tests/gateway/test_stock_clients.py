"""A client that knows nothing of us: a stock Jupyter server started with ``--gateway-url``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import free_port
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack, run, wait_for


@pytest.fixture
def server(stack: Stack, tmp_path: Path) -> Iterator[Client]:
    """Run grace's own Jupyter server, whose kernels are the gateway's."""
    port = free_port()
    directories = {name: str(tmp_path) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter", "server", "--allow-root", "--no-browser", f"--port={port}",
                "--IdentityProvider.token=secret", f"--gateway-url={stack.gateway_url}", f"--notebook-dir={tmp_path}",
            ],
            env=os.environ | directories | {"JUPYTER_GATEWAY_AUTH_TOKEN": stack.token("grace")},
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield Client(f"http://127.0.0.1:{port}", "secret")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def test_a_stock_server_works_with_its_users_kernels_only(stack: Stack, server: Client) -> None:
    """Kernelspecs, start, cells, interrupt, restart, list and shutdown go through; others' kernels stay unseen."""

    async def scenario() -> None:
        await stack.client("mary").start()
        specs = (await server.request("GET", "/api/kernelspecs")).body["kernelspecs"]
        assert specs["shared-gpu"]["spec"]["display_name"] == "Shared GPU (PyTorch)"
        assert "logo-svg" in specs["shared-gpu"]["resources"]
        logo = await server.request("GET", specs["shared-gpu"]["resources"]["logo-64x64"])
        assert logo.status == 200
        kernel = await server.start()
        async with server.attach(kernel, legacy=True) as channels:
            assert (await channels.run("x = 41; x + 1"))["text"] == "42"
            await channels.send("execute_request", {"code": "print('on')\nwhile True: pass", "silent": False})
            await channels.until("stream", text="on\n")
            assert (await server.request("POST", f"/api/kernels/{kernel}/interrupt")).status == 204
            await channels.until("execute_reply", status="error")
            assert [model["id"] for model in (await server.request("GET", "/api/kernels")).body] == [kernel]
            assert (await server.request("POST", f"/api/kernels/{kernel}/restart")).status == 200
            assert (await channels.run("'x' in dir()"))["text"] == "False"
        await server.end(kernel)
        assert (await stack.client("grace").request("GET", "/api/kernels")).body == []

    run(scenario())
