"""What passes through a session's websocket, and what does not."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.jupyter.wire import new_message, to_websocket
from tests.gateway.client import Channels, Client
from tests.gateway.conftest import Stack

MIB = 1024**2


async def stderr(channels: Channels) -> str:
    """Return the next sentence that the gateway shows."""
    return str((await channels.until("stream", name="stderr"))[-1]["content"]["text"])


async def until_idle(client: Client, kernel: str) -> None:
    """Return when no cell of *kernel* runs any more."""
    while (await client.request("GET", f"/api/kernels/{kernel}")).body["execution_state"] == "busy":  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def until_left(client: Client, kernel: str) -> None:
    """Return when the gateway knows that *kernel* has no client any more."""
    while (await client.request("GET", f"/api/kernels/{kernel}")).body["connections"]:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def waiting_for(path: Path) -> str:
    """Return code that waits until *path* is there."""
    return f"import pathlib, time\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)\n"


async def test_a_cell_runs_once_and_can_be_interrupted_or_refused(stack: Stack) -> None:
    """By REST and by message; a stock server does so in the other framing (`test_stock_clients.py`).

    A relay repeats what it has no reply to: the reply may have gone to a gateway that was killed. A cell that is too
    long fails with a sentence instead of waiting for ever; the channel goes on.
    """
    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        assert (await channels.run("print('a'); 1 + 1"))["text"] == "a\n2"
        for how in ("rest", "message"):
            # Or the kernel would drop the next cell, if that comes before it has done with the failure of this one.
            cell = {"code": "print('on')\nwhile True: pass", "silent": False, "stop_on_error": False}
            await channels.send("execute_request", cell)
            await channels.until("stream", text="on\n")
            if how == "rest":
                assert (await grace.request("POST", f"/api/kernels/{kernel}/interrupt")).status == 204
            else:
                await channels.send("interrupt_request", {}, "control")
            assert (await channels.until("execute_reply"))[-1]["content"]["ename"] == "KeyboardInterrupt"

        await channels.run("n = 0")
        again = {"code": "n += 1; n", "silent": False, "stop_on_error": True}
        parts = new_message("execute_request", again, session=channels.session_id)
        replies = []
        for _ in range(2):
            await channels.socket.write_message(to_websocket("shell", parts), binary=True)
            replies.append((await channels.until("execute_reply"))[-1])
        assert replies[0] == replies[1]

        refused = await channels.run("#" * (65 * MIB))
        assert refused["status"] == "error"
        assert "the gateway accepts 64.0 MiB" in refused["text"]
        assert (await channels.run("n"))["text"] == "1"


async def test_binary_buffers_pass_untouched(stack: Stack) -> None:
    """What a widget sends and what comes back, byte by byte."""
    grace = stack.client("grace")
    async with grace.attach(await grace.start()) as channels:
        await channels.run(
            "def target(comm, opened):\n"
            "    comm.on_msg(lambda m: comm.send({'n': len(m['buffers'])}, buffers=[bytes(b)[::-1] "
            "for b in m['buffers']]))\n"
            "get_ipython().kernel.comm_manager.register_target('echo', target)"
        )
        await channels.send("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}})
        payload = bytes(range(256)) * 100
        await channels.send("comm_msg", {"comm_id": "c", "data": {}}, "shell", payload, b"\x00")
        answer = (await channels.until("comm_msg"))[-1]
        assert answer["content"]["data"] == {"n": 2}
        assert answer["buffers"] == [payload[::-1], b"\x00"]


async def test_a_client_without_binary_frames_loses_buffers_but_not_its_channel(stack: Stack) -> None:
    """The message comes without them; that is said once."""
    grace = stack.client("grace")
    async with grace.attach(await grace.start(), legacy=True) as channels:
        await channels.send(
            "execute_request",
            {
                "code": "from comm import create_comm\n"
                "for _ in range(2):\n"
                "    create_comm(target_name='t', data={'buffer_paths': [['value']]}, buffers=[b'\\xff\\xfe'])",
                "silent": False,
            },
        )
        messages = await channels.until("status", execution_state="idle")
        said = [message["content"]["text"] for message in messages if message["type"] == "stream"]
        opened = [message for message in messages if message["type"] == "comm_open"]
        assert [message["content"]["data"] for message in opened] == [{"buffer_paths": []}] * 2
        assert len(said) == 1
        assert "sharedkernel install" in said[0]
        assert (await channels.run("1 + 1"))["text"] == "2"


MALFORMED: dict[str, list[str | bytes]] = {
    "v1": [
        b"",
        "text",
        to_websocket("iopub", new_message("status", {}, session="x")),
        to_websocket("shell", [b"[]", b"{}", b"{}", b"{}"]),
        to_websocket("shell", [b"[" * 100_000, b"{}", b"{}", b"{}"]),
        to_websocket("shell", [b"{}", b"{}", b"{}", b"{}"]),
    ],
    "legacy": [
        "[]",
        "[" * 100_000,
        "{}",
        '{"channel": "iopub", "header": {"msg_id": "1"}}',
        '{"channel": "shell", "header": {"msg_id": "1"}}',
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\x00\x00\x00\x08{",
    ],
}


@pytest.mark.parametrize("framing", ["v1", "legacy"])
async def test_what_is_no_message_is_answered_and_disturbs_nobody(stack: Stack, framing: str) -> None:
    """Each gets a sentence; the channel goes on, and so does the other client's."""
    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel, legacy=framing == "legacy") as channels, grace.attach(kernel) as other:
        await channels.run("x = 1")
        for frame in MALFORMED[framing]:
            await channels.socket.write_message(frame, binary=isinstance(frame, bytes))
            assert "no Jupyter message" in await stderr(channels), frame
        assert (await channels.run("x + 1"))["text"] == "2"
        assert (await other.run("x + 2"))["text"] == "3"


def come_back(client: Client, kernel: str) -> Channels:
    """Return the channels of a client that asks what it has missed."""
    channels = client.attach(kernel)
    channels._request.url += "&seen=nothing"
    return channels


@pytest.mark.parametrize(
    "lie",
    [
        "from sharedkernel.session.channels.message_log import Missed\n"
        "kernel.message_log.since = lambda *_, **__: Missed([('nowhere', [b'?']), ('shell', [b'?'])], False)",
        "serialize = kernel.session.serialize\n"
        "def forged(message, *args, **options):\n"
        "    frames = serialize(message, *args, **options)\n"
        "    if message['header']['msg_type'] == 'missed_messages_reply':\n"
        "        frames[frames.index(b'<IDS|MSG>') + 1] = b'0' * 64\n"
        "    return frames\n"
        "kernel.session.serialize = forged",
    ],
    ids=["content", "signature"],
)
async def test_a_session_that_lies_of_what_was_missed_is_heard_all_the_same(stack: Stack, lie: str) -> None:
    """Nothing of what it says afterwards is held back for that."""
    said = len(stack.gateway_log())
    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        assert (await channels.run(f"kernel = get_ipython().kernel\n{lie}"))["status"] == "ok"
    async with come_back(grace, kernel) as channels:
        assert (await channels.run("6 * 7"))["text"] == "42"
    assert "valid message" in stack.gateway_log()[said:]


async def test_a_flood_before_it_is_known_what_was_missed_is_told_in_order(stack: Stack) -> None:
    """The gateway holds some of it back and reads no more; the session keeps the end of it, which is told once."""
    late = (
        "import sys, threading\n"
        "kernel, answer = get_ipython().kernel, threading.Event()\n"
        "since = kernel.message_log.since\n"
        "kernel.message_log.since = lambda *asked, **options: answer.wait() and since(*asked, **options)"
    )
    # It answers while it still prints: it would wait for the gateway in the end, which holds 16 MiB.
    flood = "for n in range(40):\n    print(f'{n:02d}' + 'x' * 2**20); sys.stdout.flush()\n    if n == 26: answer.set()"

    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        assert (await channels.run(late))["status"] == "ok"
    async with come_back(grace, kernel) as channels:
        await channels.send("execute_request", {"code": flood, "silent": False})
        messages = await channels.until("status", execution_state="idle")
        text = "".join(message["content"]["text"] for message in messages if message["type"] == "stream")
        printed = [line[:2] for line in text.splitlines() if line.endswith("xxx")]
        assert printed == [f"{number:02d}" for number in range(40)]


async def test_a_flood_of_output_while_away_is_bounded_and_said(stack: Stack, tmp_path: Path) -> None:
    """The oldest goes, with a sentence; the newest is there."""
    flood = "for n in range(40): print(n, 'x' * 2**20, flush=True)"

    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel, "me") as channels:
        code = waiting_for(tmp_path / "away") + flood
        await channels.send("execute_request", {"code": code, "silent": False})
        await channels.until("execute_input")
    await until_left(grace, kernel)
    (tmp_path / "away").touch()
    await until_idle(grace, kernel)
    async with grace.attach(kernel, "me") as channels:
        assert "messages of this session were dropped while nobody was connected" in await stderr(channels)
        await channels.until("execute_reply", status="ok")


async def test_what_was_said_once_is_not_lost_among_the_updates_of_widgets(stack: Stack, tmp_path: Path) -> None:
    """Of a comm's updates those are kept that later ones do not set again, in their place among its other messages."""
    away = tmp_path / "away"
    prepare = (
        "import ipywidgets\n"
        "page, bar = ipywidgets.HTML(), ipywidgets.IntProgress(max=1000)\n"
        "page.model_id, bar.model_id"
    )
    # 40 MiB, of which the gateway keeps 16
    code = (
        f"{waiting_for(away)}print('said once')\n"
        "for n in range(600):\n"
        "    page.value, bar.value = f'{n} ' + 'x' * 2**16, n\n"
        "    if n == 300:\n        page.send('custom')"
    )

    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel, "me") as channels:
        page, bar = ast.literal_eval((await channels.run(prepare))["text"])
        await channels.send("execute_request", {"code": code, "silent": False})
        await channels.until("execute_input")
    await until_left(grace, kernel)
    away.touch()
    await until_idle(grace, kernel)
    async with grace.attach(kernel, "me") as channels:
        messages = await channels.until("status", execution_state="idle")
    assert [message["content"]["text"] for message in messages if message["type"] == "stream"] == ["said once\n"]
    said: dict[str, list[Any]] = {page: [], bar: []}
    for message in messages:
        if message["type"] == "comm_msg":
            data = message["content"]["data"]
            value = data.get("content") or data["state"]["value"]
            said[message["content"]["comm_id"]].append(value.split()[0] if isinstance(value, str) else value)
    assert said == {page: ["300", "custom", "599"], bar: [599]}


async def test_a_crash_is_explained_in_its_cell_and_the_session_started_again(stack: Stack) -> None:
    """The user reads why, the same kernel id serves on, and the neighbour notices nothing."""
    code, why = "import ctypes; ctypes.string_at(0)", "SIGSEGV"
    grace, mary = stack.client("grace"), stack.client("mary")
    kernel, other = await grace.start(), await mary.start()
    async with grace.attach(kernel) as channels, mary.attach(other) as neighbour:
        await neighbour.run("x = 1")
        cell = await channels.send("execute_request", {"code": code, "silent": False})
        told = (await channels.until("stream", name="stderr"))[-1]
        while why not in told["content"]["text"]:  # before it, what the dying process itself said
            told = (await channels.until("stream", name="stderr"))[-1]
        assert told["parent_header"]["msg_id"] == cell
        restarting = (await channels.until("status", execution_state="restarting"))[-1]
        assert why in restarting["content"]["message"]
        while (await grace.request("GET", f"/api/kernels/{kernel}")).body.get("reason"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # until the new process serves
        assert (await channels.run("1 + 1"))["text"] == "2"
        assert (await neighbour.run("x + 1"))["text"] == "2"


async def test_a_crash_while_nobody_is_connected_is_told_to_who_comes_next(stack: Stack, tmp_path: Path) -> None:
    """Even a client that was not there reads why the variables are gone."""
    grace = stack.client("grace")
    kernel = await grace.start()
    code = f"import os\nprint(os.getpid())\n{waiting_for(tmp_path / 'crash')}os._exit(3)"
    async with grace.attach(kernel) as channels:
        await channels.send("execute_request", {"code": code, "silent": False})
        pid = (await channels.until("stream"))[-1]["content"]["text"].strip()
    await until_left(grace, kernel)
    (tmp_path / "crash").touch()
    await until_idle(grace, kernel)
    async with grace.attach(kernel) as channels:
        assert "exited by itself with code 3" in await stderr(channels)
        assert (await channels.run("import os; print(os.getpid())"))["text"].strip() != pid


async def test_one_notebooks_place_has_one_session(stack: Stack) -> None:
    """Asking again under the same key, even at the same moment, returns the session; a user's key is theirs."""
    grace, mary = stack.client("grace"), stack.client("mary")
    first, second = await asyncio.gather(*(grace.start(KERNEL_CLIENT_KEY="k") for _ in range(2)))
    assert first == second == await grace.start(KERNEL_CLIENT_KEY="k")
    assert await mary.start(KERNEL_CLIENT_KEY="k") != first
    assert await grace.start(KERNEL_CLIENT_KEY="other") != first


async def test_a_bad_request_for_a_session_is_refused(stack: Stack) -> None:
    """One sentence each, and no session."""
    grace = stack.client("grace")
    for body, status, sentence in (
        (b"{", 400, "Invalid JSON"),
        (b"[" * 100_000, 400, ""),
        (b"[1]", 400, "no JSON object"),
        (b'{"name": 3}', 400, "`name` is 3"),
        (b'{"path": {"a": 1}}', 400, ""),
        (b'{"env": ["x"]}', 400, ""),
        (b'{"env": {"KERNEL_X": 1}}', 400, "write names and texts"),
        (b'{"env": {"KERNEL_X": "' + b"x" * 20_000 + b'"}}', 400, "pass data in files"),
        (b'{"name": "python3"}', 404, "there is no kernel 'python3' here"),
        (b'{"name": "../../x"}', 404, ""),
    ):
        answer = await grace.request("POST", "/api/kernels", raw=body)
        assert answer.status == status, (body[:40], answer)
        assert sentence in json.dumps(answer.body)
    assert (await grace.request("GET", "/api/kernels")).body == []


async def test_a_new_client_is_told_that_a_cell_runs(stack: Stack, tmp_path: Path) -> None:
    """A page that was loaded anew would hear of it only at the cell's end."""
    enough = tmp_path / "enough"

    grace = stack.client("grace")
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        await channels.send("execute_request", {"code": f"print('on')\n{waiting_for(enough)}", "silent": False})
        cell = (await channels.until("stream", text="on\n"))[-1]["parent_header"]["msg_id"]
        async with grace.attach(kernel) as others:
            told = (await others.until("status"))[-1]
            assert told["content"]["execution_state"] == "busy"
            assert told["parent_header"]["msg_id"] == cell
            enough.touch()
            await others.until("status", execution_state="idle")
        await channels.until("execute_reply")
