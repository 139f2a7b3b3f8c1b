"""The stock side: an ordinary Jupyter server with an ordinary ipykernel, and the relay's kernelspec beside it.

Nothing of the machine's own Jupyter configuration reaches it: what is measured is what `pip install jupyter_server
ipykernel` gives. One server serves both kernelspecs, so that a stock kernel and a relay are started and spoken to
through the same process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from ipykernel.kernelspec import write_kernel_spec

from benchmarks.stack.client import Route
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack, free_port
from sharedkernel.services import Service
from sharedkernel.system.signals import uninterrupted

log = logging.getLogger(__name__)

STOCK_KERNEL = "python3"


class StockServer:
    """A stock Jupyter server on loopback, gone without a trace when the block ends.

    Parameters
    ----------
    stack
        Whose kernelspec it offers as well, for the stack's first user; None: only the stock kernel.
    options
        More options for the server's command line.
    """

    def __init__(self, stack: LocalStack | None = None, *, options: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sk-stock-"))
        self._stack = stack
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._token = secrets.token_hex(16)
        self.service = Service(
            [
                "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
                "--ServerApp.open_browser=False", "--ServerApp.allow_root=True",
                f"--ServerApp.root_dir={self.directory}", *options,
            ],
            log_path=self.directory / "server.log",
            is_ready=self._answers,
            scratch=self.directory / "tmp",
            program="jupyter_server",  # `jupyter server` looks for a program, which not every installation has
            name="stock Jupyter server",
            environment=self._environment(),
        )  # fmt: skip

    @property
    def stock(self) -> Route:
        """The way to a stock kernel."""
        return Route(name="the stock server", url=self.url, token=self._token, kernel=STOCK_KERNEL)

    @property
    def relay(self) -> Route:
        """The way to a session through a relay, which this server starts."""
        return Route(name="the stock server's relay", url=self.url, token=self._token, kernel=KERNEL_NAME)

    def processes(self) -> list[psutil.Process]:
        """Return the kernels' processes: all that the server has started."""
        if self.service.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.service.process.pid).children(recursive=True)
        return []

    def start(self) -> None:
        """Start the server; returns once it answers.

        Raises
        ------
        SharedKernelError
            When it does not; nothing is left running then.
        """
        try:
            (self.directory / "tmp").mkdir()
            write_kernel_spec(str(self.directory / "data" / "kernels" / STOCK_KERNEL))
            self.service.start()
            self.service.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and its kernels, and remove its files; returns once that is so."""
        with uninterrupted():
            kernels = self.processes()
            self.service.stop()  # it shuts its kernels down
            for kernel in kernels:
                with contextlib.suppress(psutil.NoSuchProcess):
                    kernel.kill()
                    log.warning("the server left its kernel %d running", kernel.pid)
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        places = {
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython",
        }
        environment = {name: str(self.directory / place) for name, place in places.items()}
        # The token is in the environment because others could read it on the command line.
        environment |= {"JUPYTER_TOKEN": self._token, "JUPYTER_NO_CONFIG": "1", "JUPYTER_PATH": ""}
        if self._stack is not None:
            environment |= self._stack.client_environment(self._stack.users[0])
        return environment

    def _answers(self) -> bool:
        request = urllib.request.Request(f"{self.url}/api", headers={"Authorization": f"token {self._token}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as response:
                return "version" in json.load(response)
        except OSError:
            return False


def gateway_route(stack: LocalStack, user: str | None = None) -> Route:
    """Return the way to a session straight through the stack's gateway.

    Parameters
    ----------
    stack
        Has the gateway.
    user
        Whose session it is; None: the first user's.
    """
    return Route(
        name="the gateway", url=stack.gateway_url, token=stack.token(user or stack.users[0]), kernel=KERNEL_NAME
    )
