"""Terminals on the host through the user's own Jupyter server: started, joined to a page, ended, and refused."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import websocket

from tests.client.extension.server import PATIENCE, TOKEN, JupyterServer
from tests.files import FileStack

pytestmark = pytest.mark.heavy

TERMINALS = "/sharedkernel/api/host/api/terminals"


@contextmanager
def connected(server: JupyterServer, name: str, token: str = TOKEN) -> Generator[websocket.WebSocket, None, None]:
    """Connect to a terminal as a page does."""
    url = f"ws{server.url.removeprefix('http')}/sharedkernel/api/host/terminals/websocket/{name}?token={token}"
    channel = websocket.create_connection(url, timeout=PATIENCE)
    try:
        yield channel
    finally:
        channel.shutdown()


def read_until(channel: websocket.WebSocket, text: str) -> None:
    """Return once the terminal has shown *text*."""
    shown = ""
    while text not in shown:
        kind, *content = json.loads(channel.recv())
        shown += content[0] if kind == "stdout" else ""


def test_a_terminal_there_is_used_from_here(lab: JupyterServer, files: FileStack) -> None:
    """Typed into and read in the folder that was named, left and joined again; when it is ended, its page is told."""
    (files.home() / "work").mkdir(parents=True)
    answer = lab.ask("POST", TERMINALS, {"cwd": "work"})
    assert answer.status == 200
    name = answer.body["name"]
    with connected(lab, name) as channel:
        channel.send(json.dumps(["stdin", "pwd; seq 200000; echo it-is-$((6 * 7))\r"]))
        read_until(channel, str(files.home() / "work"))
        read_until(channel, "it-is-42")
    with connected(lab, name) as channel:
        channel.send(json.dumps(["stdin", "echo once-more-$((6 * 7))\r"]))
        read_until(channel, "once-more-42")
        assert lab.ask("DELETE", f"{TERMINALS}/{name}").status == 204
        while json.loads(channel.recv())[0] != "disconnect":
            pass


def test_a_terminal_takes_this_servers_token(lab: JupyterServer) -> None:
    """To start it, and to be joined to it."""
    name = lab.ask("POST", TERMINALS, {}).body["name"]
    assert lab.ask("POST", TERMINALS, {}, token="wrong").status == 403
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"), connected(lab, name, "wrong"):
        pass
    assert lab.ask("DELETE", f"{TERMINALS}/{name}").status == 204


def test_a_terminal_that_is_gone_says_so(lab: JupyterServer) -> None:
    """And its page does not try again."""
    with connected(lab, "99") as channel:
        said = [json.loads(channel.recv()) for _ in range(2)]
        opcode, data = channel.recv_data()
    assert said == [["setup", {}], ["stdout", "This terminal has ended.\r\n"]]
    assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1000)
