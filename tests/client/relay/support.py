"""What the relay's tests are built from: a gateway's process, a notebook's client, a line that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import nbformat
import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from sharedkernel.local_stack import free_port
from sharedkernel.services import Service
from tests.asking import ask
from tests.processes import open_files
from tests.readiness import wait_until_blocking_ready

#: seconds that anything may take, on a busy machine
TIMEOUT = 60.0


def wait_until(condition: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
    """Return what *condition* returns once that is true; fail after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {condition}"
        time.sleep(0.01)
    return value


class GatewayProcess(Service):
    """A Jupyter server as a process of its own, on a port that stays the same when it is started again.

    When it is killed its sessions notice, and end too.

    Parameters
    ----------
    directory
        Holds everything.
    options
        More of its command line.
    contract
        Whether it finds sessions again, see `contract_gateway.py`; else it is a stock one.
    """

    def __init__(self, directory: Path, *options: str, contract: bool = False) -> None:
        self.directory = directory
        self.token = "a-token"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.refusal_file = directory / "refusal.json"
        self.journal_file = directory / "journal.jsonl"
        kernel = directory / "jupyter" / "kernels" / "shared-gpu"
        kernel.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "stock", "language": "python"}))
        arguments = [
            *options, "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0", "--ServerApp.open_browser=False", "--ServerApp.allow_root=True",
            "--ServerApp.jpserver_extensions={}", f"--ServerApp.root_dir={directory}",
            "--ZMQChannelsWebsocketConnection.limit_rate=False",
        ]  # fmt: skip
        if contract:
            arguments.append(f"--ContractKernelManager.refusal_file={self.refusal_file}")
            arguments.append(f"--ContractKernelManager.journal_file={self.journal_file}")
        super().__init__(
            arguments,
            log_path=directory / "log",
            is_ready=self._answers,
            scratch=directory,
            program="tests.client.relay.contract_gateway" if contract else "jupyter_server",
            environment={"JUPYTER_PATH": str(directory / "jupyter")},
        )

    def start(self) -> None:
        """Start it with the token as it is now; returns once it answers."""
        self.environment["JUPYTER_TOKEN"] = self.token
        super().start()
        self.wait_until_ready()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it do nothing until the context ends."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def fetch(self, path: str, method: str = "GET") -> Any:
        """Ask its API."""
        answer = ask(self.url + path, self.token, method)
        assert answer.status < 400, answer
        return answer.body

    def sessions(self) -> set[str]:
        """Return the ids of its live sessions."""
        return {kernel["id"] for kernel in self.fetch("/api/kernels")}

    def asked(self) -> list[dict[str, str]]:
        """Return what relays sent along when they asked for sessions, oldest first."""
        return [json.loads(line) for line in self.journal_file.read_text().splitlines()]

    @contextlib.contextmanager
    def refusing(self, status: int, message: str, reason: str) -> Iterator[Callable[[], None]]:
        """Refuse new sessions, until the function that this gives is called or the context ends."""

        def stop() -> None:
            self.refusal_file.unlink(missing_ok=True)

        self.refusal_file.write_text(json.dumps({"status": status, "message": message, "reason": reason}))
        try:
            yield stop
        finally:
            stop()

    def _answers(self) -> bool:
        try:
            return ask(f"{self.url}/api", self.token).status == 200
        except OSError:
            return False


def new_notebook(*cells: str) -> nbformat.NotebookNode:
    """Return a notebook for the shared device."""
    spec = {"name": "shared-gpu", "display_name": "Shared GPU (PyTorch)", "language": "python"}
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": spec}
    )


@dataclass
class Outcome:
    """What a cell gave."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply["content"]["status"])

    @property
    def error(self) -> str:
        """The reply's exception with its text."""
        content = self.reply["content"]
        return f"{content['ename']}: {content['evalue']}"

    def of_type(self, message_type: str) -> list[dict[str, Any]]:
        return [message["content"] for message in self.messages if message["msg_type"] == message_type]

    def text(self, name: str = "stdout") -> str:
        return "".join(content["text"] for content in self.of_type("stream") if content["name"] == name)


class Notebook:
    """A client with its kernel: jupyter_client's own manager and blocking client, and our kernelspec."""

    def __init__(self, url: str | None, token: str | None, *, transport: str = "tcp", name: str = "shared-gpu") -> None:
        self.manager = KernelManager(kernel_name=name, transport=transport)
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("SHAREDKERNEL_", "JPY_"))
        }
        if url is not None:
            self.environment["SHAREDKERNEL_GATEWAY_URL"] = url
        if token is not None:
            self.environment["SHAREDKERNEL_TOKEN"] = token
        #: seconds that the kernel may take to answer
        self.timeout = TIMEOUT
        self.client: BlockingKernelClient

    @property
    def pid(self) -> int:
        """The relay's process."""
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        self.manager.start_kernel(env=self.environment)
        try:
            self.client = self.manager.client()
            self.client.start_channels()
            self.wait_for_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        self.manager.context.destroy(linger=0)

    @contextlib.contextmanager
    def another_client(self, **channels: bool) -> Iterator[BlockingKernelClient]:
        """Connect a second client to the kernel, with an identity of its own."""
        client = BlockingKernelClient(connection_file=self.manager.connection_file)
        client.load_connection_file()
        client.start_channels(**{"hb": False} | channels)  # a heartbeat that is late on a busy machine is no death
        try:
            yield client
        finally:
            client.stop_channels()

    def run(self, code: str, **options: Any) -> Outcome:
        """Run a cell to its end."""
        return self.wait(self.client.execute(code, **options))

    def wait(self, message_id: str, timeout: float = TIMEOUT) -> Outcome:
        """Return a running cell's outcome: its reply, and what it published up to idle."""
        deadline = time.monotonic() + timeout
        messages = [*self.published(message_id, until=_is_idle, deadline=deadline)]
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.0, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message_id:
                return Outcome(reply, messages)

    def published(
        self, message_id: str, *, until: Callable[[dict[str, Any]], bool], deadline: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield what the request *message_id* publishes, up to the first message of which *until* is true."""
        deadline = deadline or time.monotonic() + TIMEOUT
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") == message_id:
                yield message
                if until(message):
                    return

    def restart(self, *, now: bool = False) -> None:
        """Restart the kernel as a client does, *now* or kindly, and wait for it."""
        self.manager.restart_kernel(now=now)
        self.wait_for_ready()

    def wait_for_ready(self) -> None:
        """Return once the kernel answers here and is heard, and nothing that was asked before is left.

        A stock server that meets the death of a kernel connects to the next one again while that starts, and loses
        what it publishes before: a cell's outputs may be missing, its end too.
        """
        wait_until_blocking_ready(self.client, self.timeout)

    def wait_for_output(self, message_id: str, text: str) -> None:
        """Return once the cell has printed *text*."""
        for _ in self.published(message_id, until=lambda message: text in message["content"].get("text", "")):
            pass

    def control(self, message_type: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask on the control channel and return the reply."""
        message = self.client.session.msg(message_type, content or {})
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=TIMEOUT)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply)


def _is_idle(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+)", rollup, re.MULTILINE))


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Line:
    """A TCP line to a gateway that can be cut and mended: a network with outages."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._delay = 0.0
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def mend(self, delay: float = 0.0) -> None:
        """Let connections through; what the gateway says first on each arrives after *delay* seconds, all together."""
        self._delay = delay
        asyncio.run_coroutine_threadsafe(self._mend(), self._loop).result(TIMEOUT)

    def cut(self, notebook: Notebook | None = None) -> None:
        """Break every connection and refuse new ones; return once the relay of *notebook* has noticed."""
        pid = None if notebook is None else notebook.pid
        sockets = set() if pid is None else self._sockets_of(pid)
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(TIMEOUT)
        if pid is not None:
            # Closed by the relay: that it was reset at this end does not say that the relay has read so.
            wait_until(lambda: sockets.isdisjoint(open_files(pid).values()))

    def _sockets_of(self, pid: int) -> set[str]:
        """Return what a process has open to this line, by the system's names."""
        connections = psutil.Process(pid).net_connections("tcp")
        mine = [connection for connection in connections if connection.raddr and connection.raddr.port == self.port]
        return {os.readlink(f"/proc/{pid}/fd/{connection.fd}") for connection in mine}

    async def _mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        mine = asyncio.current_task()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not mine), return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await self._connect()
        ends = {writer, far_writer}
        if self._server is None:  # cut meanwhile
            for end in ends:
                end.transport.abort()
            return
        self._writers |= ends
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer, delay=self._delay))
        self._writers -= ends


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float = 0.0) -> None:
    await asyncio.sleep(delay)
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
