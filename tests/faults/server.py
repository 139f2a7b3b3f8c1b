"""A notebook as a page has it: a user's own Jupyter server, which can be killed, its relay, and one websocket.

Looks like :class:`~tests.client.relay.support.Notebook`, so that a campaign need not know which one it has.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Self

import psutil
import websocket

from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.wire import from_websocket, new_message, to_websocket
from sharedkernel.services import Service
from tests.client.extension.server import TOKEN, JupyterServer
from tests.readiness import wait_until_blocking_ready

#: seconds that anything may take while processes are killed and started again beside it on a busy machine, or stopped:
#: gateway and executor for a minute each, one after the other
PATIENCE = 300.0

#: the server starts a relay that was killed again at its old place, however often that is
_RESTARTS = ("--AsyncIOLoopKernelRestarter.random_ports_until_alive=False", "--KernelRestarter.restart_limit=1000000")


class Page:
    """The websocket of one kernel, with the names of jupyter_client's blocking client.

    Parameters
    ----------
    server
        Whose.
    kernel
        Its id.
    """

    def __init__(self, server: JupyterServer, kernel: str) -> None:
        self._name = uuid.uuid4().hex
        url = f"ws{server.url.removeprefix('http')}/api/kernels/{kernel}/channels?session_id={self._name}"
        # A server waits a minute itself for a kernel whose executor is stopped just now.
        self._socket = websocket.create_connection(
            url,
            timeout=2 * PATIENCE,
            header=[f"Authorization: token {TOKEN}"],
            subprotocols=[WEBSOCKET_PROTOCOL],
        )
        self._socket.settimeout(None)
        self._queues: dict[str, SimpleQueue[dict[str, Any]]] = {"iopub": SimpleQueue(), "shell": SimpleQueue()}
        #: of jupyter_client's client there is only what its users set
        self.session = SimpleNamespace(digest_history_size=0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Go away."""
        self._socket.close()
        self._reader.join(PATIENCE)

    def execute(self, code: str) -> str:
        """Run a cell; return the request's id."""
        return self._send("execute_request", {"code": code, "silent": False, "stop_on_error": True})

    def get_iopub_msg(self, timeout: float) -> dict[str, Any]:
        """Return the next published message; raise Empty after *timeout* seconds."""
        return self._queues["iopub"].get(timeout=timeout)

    def get_shell_msg(self, timeout: float) -> dict[str, Any]:
        """Return the next reply; raise Empty after *timeout* seconds."""
        return self._queues["shell"].get(block=timeout > 0, timeout=timeout or None)

    def kernel_info(self) -> str:
        """Ask who the kernel is; return the request's id."""
        return self._send("kernel_info_request", {})

    def _send(self, message_type: str, content: dict[str, Any]) -> str:
        parts = new_message(message_type, content, session=self._name)
        with contextlib.suppress(OSError, websocket.WebSocketException):  # that the server ended is seen elsewhere
            self._socket.send_binary(to_websocket("shell", parts))
        return str(json.loads(parts[0])["msg_id"])

    def _read(self) -> None:
        with contextlib.suppress(OSError, websocket.WebSocketException, ValueError):
            while frame := self._socket.recv():
                channel, parts = from_websocket(frame)
                header, parent, _, content = map(json.loads, parts[:4])
                names = {name: header[name] for name in ("msg_id", "msg_type")}
                if (queue := self._queues.get(channel)) is not None:
                    queue.put({**names, "header": header, "parent_header": parent, "content": content})


class ServerNotebook:
    """A notebook that a real Jupyter server has open; `with` starts the server and stops it.

    Parameters
    ----------
    directory
        The server's; the same one when it is started again.
    environment
        Says where the gateway is.
    name
        The notebook's.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], name: str) -> None:
        self._server = JupyterServer(directory, environment, *_RESTARTS)
        self._path = f"{name}.ipynb"
        self.client: Page
        self.pid = 0
        self.connection_file = ""
        #: who asks for the manager gets what a server does by itself
        self.manager = self

    @property
    def service(self) -> Service:
        """The server's process."""
        return self._server.service

    def __enter__(self) -> Self:
        self._server.start()
        body = {"path": self._path, "name": self._path, "type": "notebook", "kernel": {"name": "shared-gpu"}}
        answer = self._server.ask("POST", "/api/sessions", body)
        assert answer.status == 201, answer
        kernel = answer.body["kernel"]["id"]
        self.connection_file = str(self._server.runtime / f"kernel-{kernel}.json")
        self.pid = self._wait_for_relay()
        self.client = Page(self._server, kernel)
        wait_until_blocking_ready(self.client, PATIENCE, self.is_alive)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.stop()

    def is_alive(self) -> bool:
        """Whether server and relay live."""
        return self.service.running and _lives(self.pid)

    def restart_kernel(self, now: bool) -> None:
        """Return once the server has another relay."""
        self.pid = self._wait_for_relay(besides=self.pid)

    def _wait_for_relay(self, besides: int = 0) -> int:
        assert self.service.process is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.service.running:
            for child in psutil.Process(self.service.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if child.pid != besides and self.connection_file in child.cmdline():
                        return child.pid
            time.sleep(0.02)
        if not self.service.running:
            return 0
        raise TimeoutError(f"the server has not started a relay within {PATIENCE:g} s")


def _lives(pid: int) -> bool:
    try:
        return pid != 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
