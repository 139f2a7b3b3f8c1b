"""What a user with a token of her own can try over the network."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.attacks.conftest import Scene
from tests.fuzz.conftest import attached
from tests.gateway.client import PATIENCE


@pytest.mark.heavy
async def test_anothers_place_is_not_ones_own(scene: Scene) -> None:
    """Who names the place of another user's notebook, as its relay does, gets a session of her own."""
    kernel = await scene.mallory.start(
        KERNEL_CLIENT_KEY="graces-place", KERNEL_NOTEBOOK="private/plan.ipynb", KERNEL_USERNAME="grace"
    )
    assert kernel != scene.kernel
    async with attached(scene.mallory, kernel) as channels:
        assert (await channels.run("'secret' in globals()"))["text"] == "False"
        said = await channels.run("%shared attach")
    assert "plan" not in said["text"].replace("private/plan.ipynb", "")
    await scene.mallory.end(kernel)
    assert (await scene.grace.request("GET", f"/api/kernels/{scene.kernel}")).status == 200


async def test_a_session_cannot_be_given_anothers_id(scene: Scene) -> None:
    """Ids are the gateway's to give, and nothing of another user's can be moved, signalled or ended by its id."""
    wanted = {"name": "shared-gpu", "kernel_id": scene.kernel, "id": scene.kernel, "env": {}}
    answer = await scene.mallory.request("POST", "/api/kernels", wanted)
    assert answer.body["id"] != scene.kernel
    await scene.mallory.end(answer.body["id"])
    for method, path in (
        ("POST", f"/sharedkernel/api/sessions/{scene.kernel}/offload"),
        ("POST", f"/api/kernels/{scene.kernel}/interrupt"),
        ("POST", f"/api/kernels/{scene.kernel}/restart"),
        ("DELETE", f"/api/kernels/{scene.kernel}?linger=0"),
    ):
        assert (await scene.mallory.request(method, path)).status == 404, path
    assert (await scene.mallory.request("PUT", "/sharedkernel/api/policy", {"policy": "fifo"})).status == 403


@pytest.mark.parametrize(
    "path",
    [f"{'../' * 9}etc", "../../../../etc/cron.d/evil", "/etc/passwd", "~root/.ssh/authorized_keys", "a\n/b"],
)
async def test_a_notebooks_path_is_a_label(scene: Scene, path: str) -> None:
    """Whatever a notebook is called, nothing is read or written there; a folder that is none is not gone to."""
    body = {"name": "shared-gpu", "env": {"KERNEL_NOTEBOOK": path, "KERNEL_WORKING_DIR": path}, "path": path}
    answer = await scene.mallory.request("POST", "/api/kernels", body)
    assert answer.status in (201, 400), answer
    if answer.status == 400:
        return
    async with attached(scene.mallory, answer.body["id"]) as channels:
        found = (await channels.run("import os; os.getcwd()"))["text"]
    assert found.splitlines()[-1] == repr(str(Path.home()))
    await scene.mallory.end(answer.body["id"])


def test_connections_that_never_say_anything_whole_keep_nobody_out(scene: Scene) -> None:
    """Hundreds of requests that do not come to an end leave the gateway to the others."""

    async def scenario() -> None:
        writers = []
        for number in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", scene.stack.port)
            whole = "Host: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{" if number % 2 else "X-Slow: "
            writer.write(f"POST /api/kernels HTTP/1.1\r\n{whole}".encode())
            writers.append(writer)
        await asyncio.gather(*(writer.drain() for writer in writers))
        for _ in range(3):
            for writer in writers:
                writer.write(b"a")
            await scene.grace_still_works()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_body_that_is_too_long_is_not_waited_for(scene: Scene) -> None:
    """What would be beyond the limit is refused by what its headers say, before any of it is kept."""

    async def answer(length: int, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.stack.port)
        head = f"POST /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            return await reader.readline()
        finally:
            writer.close()

    async def scenario() -> None:
        longest = 1 << 20
        assert await answer(longest + 1, b"") == b"HTTP/1.1 400 Bad Request\r\n"
        assert await answer(longest, bytes(longest)) == b"HTTP/1.1 403 Forbidden\r\n"

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


async def test_no_file_is_served_but_the_kernelspecs_pictures(scene: Scene) -> None:
    """No spelling of a way out of their folder leads out of it."""
    logo = await scene.mallory.request("GET", "/kernelspecs/shared-gpu/logo-64x64.png")
    assert logo.status == 200
    for up in ("../", "..%2f", "%2e%2e/", "..%5c", "....//", "/"):
        path = f"/kernelspecs/shared-gpu/{up * 9}etc/passwd"
        answer = await scene.mallory.request("GET", path)
        assert answer.status in (400, 403, 404), (path, answer.status)
        assert "root:" not in str(answer.body), path
