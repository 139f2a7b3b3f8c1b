"""The stock side, and the client that talks to both sides, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.stack.client import Notebook, open_notebook
from benchmarks.stack.results import BenchmarkFailed
from benchmarks.stack.servers import StockServer
from benchmarks.stack.trainings import process_id
from sharedkernel.local_stack import LocalStack
from tests.cli.support import processes_of, wait_until
from tests.warm_stack import WarmStack


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a stack."""
    with WarmStack(capacity="2GiB") as stack:
        yield stack


@pytest.fixture(scope="module")
def server(stack: LocalStack) -> Iterator[StockServer]:
    """Run a stock server that has the stack's relay as well."""
    with StockServer(stack) as server:
        yield server


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["stock", "relay"])
def test_all_ways_lead_to_a_kernel(stack: LocalStack, server: StockServer, way: str) -> None:
    """One client code for both: text, values, errors, interrupts, and the kernel's end."""
    route = {"stock": server.stock, "relay": server.relay}[way]

    async def use() -> int:
        async with open_notebook(route) as notebook:
            assert await notebook.value("print('[1'); print('[1, 2]')") == [1, 2]
            reply = await notebook.execute("1 + 1")
            assert reply.error is None
            assert 0 < reply.reply_seconds <= reply.seconds
            with pytest.raises(BenchmarkFailed, match=r"failed: ZeroDivisionError: division by zero$"):
                await notebook.run("1 / 0")
            await endless_loop_is_interrupted(notebook, server.directory / f"begun-{way}")
            return await process_id(notebook)

    pid = asyncio.run(use())
    wait_until(lambda: not psutil.pid_exists(pid), "the kernel's end")  # a relay waits so many seconds for it


async def endless_loop_is_interrupted(notebook: Notebook, begun: Path) -> None:
    async with notebook.endless(f"open({str(begun)!r}, 'w').close()\nwhile True: pass") as cell:
        await asyncio.to_thread(wait_until, begun.exists, "the loop's begin")
        assert not cell.done()
    with pytest.raises(BenchmarkFailed, match="ended: just so"):
        async with notebook.endless("pass") as cell:
            await cell


@pytest.mark.heavy
def test_the_stock_server_is_as_pip_gives_it(server: StockServer) -> None:
    """No extension, and no configuration or kernel history of this machine's user."""

    async def use() -> str:
        async with open_notebook(server.stock) as notebook:
            return await notebook.run("import os, sys; print(os.environ['IPYTHONDIR'], 'sharedkernel' in sys.modules)")

    assert asyncio.run(use()).split() == [str(server.directory / "ipython"), "False"]
    assert "jupyterlab" not in server.service.log_path.read_text()


@pytest.mark.heavy
def test_the_stock_server_leaves_nothing_behind() -> None:
    """Its kernels, its process and its files go with it, even when nobody shut the kernels down."""
    server = StockServer()

    async def use() -> int:
        async with open_notebook(server.stock) as notebook:
            pid = await process_id(notebook)
            assert [process.pid for process in server.processes()] == [pid]
            await asyncio.to_thread(server.stop)
            assert not psutil.pid_exists(pid)
        return pid

    with server, pytest.raises(BenchmarkFailed, match=r"DELETE .* at the stock server failed"):
        asyncio.run(use())
    assert not server.directory.exists()
    assert not processes_of(server.directory)
