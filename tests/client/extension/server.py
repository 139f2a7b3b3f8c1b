"""A user's own Jupyter server as a process, and a page's connection to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import websocket

from sharedkernel.local_stack import free_port
from sharedkernel.services import Service
from tests.asking import Answer, ask

#: seconds that anything may take, on a busy machine
PATIENCE = 60.0
#: of the user's own server: it is none of the gateway's
TOKEN = "only-of-the-own-server"

View = dict[str, Any]


class JupyterServer:
    """One user's server, in a directory of its own.

    Parameters
    ----------
    directory
        Made here; holds everything.
    environment
        Says where the gateway is.
    arguments
        More of its command line.
    program
        ``"jupyterlab"`` for one with pages.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        *arguments: str,
        program: str = "jupyter_server",
    ) -> None:
        self.notebooks = directory / "notebooks"
        self.config = directory / "config_dir"
        self.runtime = directory / "runtime_dir"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        private = {
            f"JUPYTER_{name.upper()}": str(directory / name) for name in ("config_dir", "data_dir", "runtime_dir")
        }
        self.notebooks.mkdir(parents=True)
        self.service = Service(
            [
                "--no-browser", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0",
                "--ServerApp.allow_root=True", f"--ServerApp.root_dir={self.notebooks}",
                f"--IdentityProvider.token={TOKEN}", *arguments,
            ],
            log_path=directory / "server.log",
            is_ready=self._answers,
            scratch=directory,
            program=program,
            environment={**environment, **private, "IPYTHONDIR": str(directory / "ipython")},
        )  # fmt: skip

    def start(self) -> None:
        """Start it; returns once it answers."""
        self.service.start()
        self.service.wait_until_ready()

    def stop(self) -> None:
        """End it with its kernels."""
        self.service.stop()

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN) -> Answer:
        """Ask its API, as a page would."""
        return ask(self.url + path, token, method, body)

    def page(self) -> AbstractContextManager[Page]:
        """Connect as a page does."""
        return closing(Page(self))

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/api").status == 200
        except OSError:
            return False


class Page:
    """A page's websocket; remembers the last view, and all that was ever said."""

    def __init__(self, server: JupyterServer) -> None:
        url = f"ws{server.url.removeprefix('http')}/sharedkernel/api/events"
        self._socket = websocket.create_connection(url, timeout=PATIENCE, header=[f"Authorization: token {TOKEN}"])
        self.said: list[str] = []

    def wait(self, is_so: Callable[[View], Any]) -> View:
        """Return the first view of which *is_so* is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.said.append(str(self._socket.recv()))
            view: View = json.loads(self.said[-1])
            if is_so(view):
                return view
            assert time.monotonic() < deadline, f"it did not become so; the last view: {view}"

    def close(self) -> None:
        """Go away."""
        self._socket.close()


def is_connected(view: View) -> bool:
    """Whether figures of now are there."""
    return bool(view["gateway"]["state"] == "connected")
