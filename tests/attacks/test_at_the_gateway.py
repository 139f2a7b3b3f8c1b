"""What a user with a token of her own can try over the network."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.attacks.conftest import Scene
from tests.fuzz.conftest import attached


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
    """Ids are the gateway's to give; `auth/test_ownership.py` tries what can be done by one."""
    wanted = {"name": "shared-gpu", "kernel_id": scene.kernel, "id": scene.kernel, "env": {}}
    answer = await scene.mallory.request("POST", "/api/kernels", wanted)
    assert answer.body["id"] != scene.kernel
    await scene.mallory.end(answer.body["id"])


async def test_connections_that_never_say_anything_whole_keep_nobody_out(scene: Scene) -> None:
    """Hundreds of requests that do not come to an end leave the gateway to the others."""
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
