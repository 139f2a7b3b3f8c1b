"""What a careless or hostile client may send: it opens nothing, breaks nothing, and is told so."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from sharedkernel.gateway.app import SharedKernelGateway
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack
from tests.gateway.test_command import in_process


async def test_a_notebooks_name_is_a_name_and_no_path(stack: Stack) -> None:
    """It is shown as it is to whom it belongs, and no directory is entered by it."""
    grace = stack.client("grace")
    for name in ("../../../etc/passwd", "~root/.ssh/authorized_keys", ".."):
        kernel = {"name": "shared-gpu", "env": {"KERNEL_WORKING_DIR": name}}
        body = {"path": name, "type": "notebook", "name": "", "kernel": kernel}
        answer = await grace.request("POST", "/api/sessions", body)
        assert answer.status == 201, answer
        async with grace.attach(answer.body["kernel"]["id"]) as channels:
            code = "import os; print(os.path.realpath(os.getcwd()) == os.path.realpath(os.path.expanduser('~')))"
            assert (await channels.run(code))["text"] == "True\n"
        sessions = (await grace.request("GET", "/sharedkernel/api/status")).body["sessions"]
        assert name in [session["notebook"] for session in sessions]


async def test_a_name_that_would_forge_what_people_read_is_refused(stack: Stack) -> None:
    """Line ends, terminals' commands, turned writing: neither in logs nor in status."""
    grace = stack.client("grace")
    before = len(stack.gateway_log())
    for name in ("a\x00b", "\x1b[2Jx", "x\nforged log line", "x\u202egnp"):
        for path, env in ((name, {}), (None, {"KERNEL_NOTEBOOK": name})):
            answer = await grace.request("POST", "/api/kernels", {"path": path, "env": env})
            assert (answer.status, answer.body["reason"]) == (400, "bad_request"), answer
    assert "forged log line" not in stack.gateway_log()[before:].splitlines()


async def test_a_route_that_leads_elsewhere_leads_nowhere(stack: Stack) -> None:
    """Dots and zero bytes in addresses, spelt any way, serve no file."""
    for path in (
        "/api/kernels/../sessions", "/api/kernels/%2e%2e/x", "/api/kernels/..%2f..%2fetc%2fpasswd",
        "/api/kernels/a%00b", "/kernelspecs/shared-gpu/..%2f..%2f..%2frelay.py",
        "/kernelspecs/shared-gpu/..%5c..%5capp.py", "/kernelspecs/shared-gpu/%2e%2e/app.py",
        "/static/..%2f..%2fserverapp.py", "/api/sessions/%2e%2e",
    ):  # fmt: skip
        answer = await stack.client("ada").request("GET", path)
        assert answer.status in (400, 403, 404), answer
        assert "import " not in str(answer.body)


def test_who_sends_too_slowly_is_hung_up_on(tmp_path: Path) -> None:
    """Headers or a body that never end hold a connection for `request_patience` seconds, and keep nobody out."""
    config = tmp_path / "config.py"
    config.write_text("c.SharedKernelGateway.request_patience = 0.2\nc.IdentityProvider.token = 'abc'\n")

    async def scenario(gateway: SharedKernelGateway) -> None:
        await asyncio.sleep(0)  # it binds its port in the loop's first round
        start = "GET /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        body = (
            "POST /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: token abc\r\nContent-Length: 100\r\n\r\n{"
        )
        connections = []
        for number in range(200):
            begin = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write((start, body, "")[number % 3].encode())
            connections.append((reader, writer))
        assert (await Client(f"http://127.0.0.1:{gateway.port}", "").request("GET", "/healthz")).status == 200
        for reader, writer in connections:
            with contextlib.suppress(ConnectionError):  # hung up on before what was written arrived
                await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
        assert time.monotonic() - begin >= 0.1  # the last one was given its time

    with in_process("--config", str(config), directory=tmp_path) as (gateway, loop):
        loop.run(scenario(gateway))
