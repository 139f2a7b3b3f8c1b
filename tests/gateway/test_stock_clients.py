"""A client that knows nothing of us: a stock Jupyter server started with ``--gateway-url``."""

from __future__ import annotations

import asyncio
import contextlib
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


@contextlib.contextmanager
def stock_server(stack: Stack, directory: Path) -> Iterator[Client]:
    """Run grace's own Jupyter server, with its files in *directory*."""
    port = free_port()
    directories = {name: str(directory) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    directories["JUPYTER_NO_CONFIG"] = "1"  # nor the extensions of this environment, of which one is ours
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter", "server", "--allow-root", "--no-browser", f"--port={port}",
                "--IdentityProvider.token=secret", f"--gateway-url={stack.gateway_url}", f"--notebook-dir={directory}",
                # By default it gives up after five tries, 31 seconds: less than services take to start on a busy
                # machine.
                "--GatewayClient.gateway_retry_interval_max=2", "--GatewayClient.gateway_retry_max=60",
            ],
            env=os.environ | directories | {"JUPYTER_GATEWAY_AUTH_TOKEN": stack.token("grace")},
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (directory / "log").read_text()
        yield Client(f"http://127.0.0.1:{port}", "secret")
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()  # it waits long for a gateway that is away


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


async def use_as_any_gateway(server: Client) -> None:
    """Use what a server is to have of a gateway."""
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


@pytest.mark.heavy
def test_a_stock_server_works_with_its_users_kernels_only_and_keeps_them(stack: Stack, tmp_path: Path) -> None:
    """Kernelspecs, start, cells, interrupt, restart, list and shutdown go through; others' kernels stay unseen.

    A new gateway that has not reached the executor refuses to list kernels, where an empty list would end them.
    """
    grace = stack.client("grace")

    async def lists(client: Client) -> tuple[int, list[str]]:
        answer = await client.request("GET", "/api/kernels")
        return answer.status, [model["id"] for model in answer.body] if answer.status == 200 else []

    async def scenario(server: Client) -> None:
        await stack.client("mary").start()
        await use_as_any_gateway(server)
        assert await lists(grace) == (200, [])
        kernel = await server.start()
        async with server.attach(kernel, legacy=True) as channels:
            assert (await channels.run("x = 41; x"))["text"] == "41"
        stack.gateway.kill()
        stack.executor.kill()
        assert (await lists(server))[0] >= 500
        stack.gateway.start()
        while not _listens(stack.port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for client in (server, grace, server):
            assert await lists(client) == (503, [])
        for method, path in (
            ("POST", "/api/kernels"), ("GET", f"/api/kernels/{kernel}"), ("DELETE", f"/api/kernels/{kernel}"),
            ("POST", f"/api/kernels/{kernel}/restart"), ("POST", f"/api/kernels/{kernel}/interrupt"),
            ("GET", "/sharedkernel/api/status"),
        ):  # fmt: skip
            answer = await grace.request(method, path)
            assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable"), path
            assert "sharedkernel executor" in answer.body["message"] or "try again" in answer.body["message"]
        stack.executor.start()
        while (await lists(grace))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for client in (server, grace):
            assert await lists(client) == (200, [kernel])
        async with server.attach(kernel, legacy=True) as channels:
            assert (await channels.run("x + 1"))["text"] == "42"
        await server.end(kernel)
        assert await lists(grace) == (200, [])

    with stock_server(stack, tmp_path) as server:
        run(scenario(server))
