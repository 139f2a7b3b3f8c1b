"""Anything may come over a client's websocket or in a request's body; other clients notice nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import strategies as st

from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter.wire import from_websocket, new_message, to_websocket
from sharedkernel.local_stack import LocalStack
from tests.fuzz.conftest import Neighbour, attached
from tests.fuzz.fuzzing import fuzz, integers, json_values, mangled, texts
from tests.gateway.client import Client
from tests.status.documents import to_json

_kinds = st.sampled_from([
    "execute_request", "complete_request", "inspect_request", "history_request", "is_complete_request", "comm_open",
    "comm_msg", "comm_close", "comm_info_request", "kernel_info_request", "interrupt_request", "input_reply",
    "create_subshell_request", "debug_request", "nonsense",
])  # fmt: skip
_contents = st.dictionaries(
    st.sampled_from(["code", "cursor_pos", "comm_id", "target_name", "data", "silent", "value", "hist_access_type"]),
    json_values,
    max_size=4,
)


def _table(draw_count: int, offsets: list[int], rest: bytes) -> bytes:
    return b"".join((number % (1 << 64)).to_bytes(8, "little") for number in (draw_count, *offsets)) + rest


_good = st.builds(
    lambda kind, content, channel: to_websocket(channel, new_message(kind, content, session="fuzz")),
    _kinds,
    _contents,
    st.sampled_from(["shell", "control", "stdin", "iopub", "heartbeat", ""]),
)
_tables = st.builds(_table, integers, st.lists(integers | st.integers(0, 200), max_size=8), st.binary(max_size=80))
_binary = _good | mangled(_good) | _tables | st.binary(max_size=100)
_texts = texts | json_values.map(json.dumps) | st.builds(
    lambda channel, header, content: json.dumps({"channel": channel, "header": header, "content": content}),
    texts | json_values, json_values, json_values,
)  # fmt: skip


@fuzz(examples=150, frame=_binary)
def test_a_frame_is_taken_apart_or_is_none(frame: bytes) -> None:
    """Parts that are taken from a frame are in it, and make the same frame again or a shorter one."""
    try:
        channel, parts = from_websocket(frame)
    except ProtocolError:
        return
    assert len(to_websocket(channel, parts)) <= len(frame)
    assert from_websocket(to_websocket(channel, parts)) == (channel, parts)


async def _send(client: Client, kernel: str, frames: list[bytes | str], *, legacy: bool) -> None:
    async with attached(client, kernel, legacy=legacy) as channels:
        for frame in frames:
            await channels.socket.write_message(frame, binary=isinstance(frame, bytes))
        assert (await channels.run("6 * 7"))["text"] == "42"


@fuzz(examples=12, frames=st.lists(_binary | _texts, min_size=1, max_size=8), legacy=st.booleans())
def check_frames(stack: LocalStack, client: Client, frames: list[bytes | str], legacy: bool) -> None:
    async def scenario() -> None:
        kernel = await client.start()
        try:
            await _send(client, kernel, frames, legacy=legacy)
        finally:
            await client.end(kernel)

    asyncio.run(scenario())


def test_a_websocket_serves_on_whatever_comes_over_it(stack: LocalStack, neighbour: Neighbour) -> None:
    """A cell sent after it, over the same websocket, runs; so do the neighbour's."""
    check_frames(stack, Client(stack.gateway_url, stack.token("ada")))
    neighbour.works()


_ROUTES = [
    ("POST", "/api/kernels"), ("POST", "/api/sessions"), ("PUT", "/sharedkernel/api/quotas"),
    ("PUT", "/sharedkernel/api/policy"), ("GET", "/api/kernels"), ("DELETE", "/api/kernels"),
    ("POST", "/api/kernels/../kernels"), ("PATCH", "/api/sessions/x"), ("GET", "/sharedkernel/api/status?x=%00"),
    ("GET", "/sharedkernel/api/shelves"), ("DELETE", "/sharedkernel/api/shelves/ada/%00..%2F?device=%00"),
]  # fmt: skip
_environment = st.fixed_dictionaries(
    {"name": st.just("shared-gpu")},
    optional={
        "env": st.dictionaries(texts | st.sampled_from(["KERNEL_USERNAME", "KERNEL_WORKING_DIR"]), json_values | texts),
        "path": json_values | texts,
        "kernel": json_values,
        "type": json_values,
    },
)
_bodies = st.binary(max_size=60) | (json_values | _environment).map(lambda value: json.dumps(value).encode())


@fuzz(examples=40, route=st.sampled_from(_ROUTES), body=_bodies)
def check_requests(stack: LocalStack, client: Client, route: tuple[str, str], body: bytes) -> None:
    async def scenario() -> Any:
        answer = await client.request(*route, raw=body)
        for kernel in (await client.request("GET", "/api/kernels")).body:
            if kernel["id"] not in neighbours:
                await client.end(kernel["id"])
        return answer

    neighbours = {session["kernel_id"] for session in to_json(stack.status())["sessions"]}
    answer = asyncio.run(scenario())
    assert answer.status < 500 or answer.status == 501, answer  # Jupyter's answer about kernels that there are not
    assert "Traceback" not in str(answer.body)


def test_a_request_is_answered_whatever_is_in_it(stack: LocalStack, neighbour: Neighbour) -> None:
    """What is wrong is the asker's fault, never the server's (status below 500), and nobody else notices."""
    admin = Client(stack.gateway_url, stack.token("ada"))
    check_requests(stack, admin)
    asyncio.run(admin.request("PUT", "/sharedkernel/api/quotas", {}))
    neighbour.works()
