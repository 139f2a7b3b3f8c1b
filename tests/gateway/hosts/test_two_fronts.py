"""A thousand websockets at one of two fronts, which is killed: all come back through the other one, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from jupyter_core.utils import ensure_event_loop
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from sharedkernel.gateway.auth.tickets import TicketKey, host_prefix
from sharedkernel.gateway.hosts.registration import keep_registered
from sharedkernel.gateway.hosts.summary import HostSummary
from sharedkernel.gateway.tls import peer_context
from sharedkernel.local_stack import free_port
from tests.client.relay.support import Line, Notebook
from tests.gateway.client import PATIENCE
from tests.gateway.conftest import wait_for
from tests.gateway.devices import until
from tests.gateway.hosts.conftest import SECRET, Cluster

pytestmark = pytest.mark.heavy

#: websockets of stub sessions and of real ones; lines that a cell prints, and seconds between them
_STUBS, _NOTEBOOKS = 980, 20
_LINES, _PAUSE = 50, 0.1
_CELL = f"import time\nfor number in range({_LINES}):\n    print(number, flush=True)\n    time.sleep({_PAUSE})"
_KERNEL = host_prefix("stub") + "-1111-4111-8111-111111111111"


class Balancer(Line):
    """One address before several fronts, as a TCP balancer gives it: the first one that takes a connection has it."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(ports[0])
        self._ports = ports

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for port in self._ports[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return await asyncio.open_connection("127.0.0.1", self._ports[-1])


class Echo(WebSocketHandler):
    """A stub session."""

    def on_message(self, message: str | bytes) -> None:
        self.write_message(message)


@pytest.fixture
def cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; afterwards its fronts are new, and have forgotten the host of the stubs."""
    yield cluster
    for number, front in enumerate(cluster.fronts):
        front.kill()
        front.start()
        front.wait_until_ready()
        asyncio.run(cluster.client("ada", number).request("DELETE", "/sharedkernel/api/hosts/stub"))


@contextlib.asynccontextmanager
async def stub_host(cluster: Cluster) -> AsyncIterator[None]:
    """Register a host whose sessions are stubs; no other ones are placed there."""
    server, port = HTTPServer(Application([(r"/api/kernels/.*/channels", Echo)])), free_port()
    server.listen(port, "127.0.0.1")
    summary = HostSummary(name="stub", address=f"http://127.0.0.1:{port}", version="1.0", devices=[])

    async def summarize() -> HostSummary:
        return summary

    urls = [f"http://127.0.0.1:{port}" for port in cluster.ports]
    key = TicketKey.of_host(SECRET.encode(), "stub")
    context = peer_context("", "", "")
    task = asyncio.gather(*(keep_registered(url, key, summarize, context) for url in urls))

    async def is_known() -> bool:
        return all(["stub" in await cluster.known(front) for front in range(len(urls))])

    try:
        await until(is_known)
        yield
    finally:
        task.cancel()
        server.stop()


async def stub_client(cluster: Cluster, opened: asyncio.Semaphore, killed: asyncio.Event) -> None:
    """Be a client of the first front, and once that closes the websocket, of the second one."""
    first, second = (cluster.client("grace", front).attach(_KERNEL) for front in range(2))
    await first.open()
    await first.socket.write_message("hello")
    assert await first.socket.read_message() == "hello"
    opened.release()
    assert await first.socket.read_message() is None
    assert killed.is_set(), "closed before"
    first.socket.close()
    await second.open()
    await second.socket.write_message("again")
    assert await second.socket.read_message() == "again"
    second.socket.close()
    await second.socket.read_message()


def work(url: str, token: str, met: threading.Barrier) -> str:
    """Run a cell, during which the front is killed; return all that it printed."""
    loop = ensure_event_loop()
    try:
        with Notebook(url, token) as notebook:
            notebook.run("pass")
            met.wait()
            running = notebook.client.execute(_CELL)
            notebook.wait_for_output(running, "0\n")
            met.wait()  # here it is killed
            outcome = notebook.wait(running)
            return outcome.status + ":0\n" + outcome.text()
    except BaseException:
        met.abort()  # nobody waits for this one
        raise
    finally:
        loop.close()


def test_all_come_back_through_the_other_front(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell's output arrives once, in order, and each stub's websocket answers again; so does the front, later."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("JUPYTER_PATH", cluster.client_environment("grace")["JUPYTER_PATH"])

    async def test(balancer: Balancer, pool: ThreadPoolExecutor) -> None:
        async with asyncio.timeout(4 * PATIENCE):
            met = threading.Barrier(_NOTEBOOKS + 1, timeout=2 * PATIENCE)
            loop = asyncio.get_running_loop()
            job = partial(work, balancer.url, cluster.token("grace"), met)
            cells = [loop.run_in_executor(pool, job) for _ in range(_NOTEBOOKS)]
            opened, killed = asyncio.Semaphore(0), asyncio.Event()
            async with stub_host(cluster), asyncio.TaskGroup() as clients:
                for number in range(_STUBS):
                    clients.create_task(stub_client(cluster, opened, killed))
                    if number % 50 == 0:
                        await asyncio.sleep(0.1)
                for _ in range(_STUBS):
                    await opened.acquire()
                await asyncio.to_thread(met.wait)
                await asyncio.to_thread(met.wait)
                killed.set()
                cluster.fronts[0].kill()
                began = time.monotonic()
            sys.stdout.write(f"{_STUBS} websockets came back within {time.monotonic() - began:.1f} s\n")
            expected = "ok:" + "".join(f"{number}\n" for number in range(_LINES))
            assert await asyncio.gather(*cells) == [expected] * _NOTEBOOKS

    grace = cluster.client("grace")
    kernel = asyncio.run(grace.start())
    with Balancer(cluster.ports) as balancer, ThreadPoolExecutor(_NOTEBOOKS + 8) as pool:
        asyncio.run(test(balancer, pool))
    cluster.fronts[0].start()
    cluster.fronts[0].wait_until_ready()
    wait_for(lambda: asyncio.run(grace.request("GET", f"/api/kernels/{kernel}")).status == 200)
