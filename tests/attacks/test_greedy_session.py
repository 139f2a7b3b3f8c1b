"""One session that floods everything it can reach, beside a neighbour's who works: her cells all come back.

The services stay small meanwhile. How much longer her cells take depends on the machine, as what takes processors does
so by design.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.executor.harness import until
from tests.fuzz.conftest import attached
from tests.gateway.client import PATIENCE, Channels, Client
from tests.warm_stack import WarmStack

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

MIB = 1 << 20
#: what each service may have at any time, in proportional memory: twice what it has when nobody floods
_MOST_MEMORY = 500 * MIB
#: cells of the neighbour beside each flood
_CELLS = 40
_CELL = "count += 1; print(int(count))"

#: what all floods begin with; they last while a file exists
_PRELUDE = """
import gc, os, socket, subprocess, sys, threading, time
from pathlib import Path
from sharedkernel import protocol
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.session.connection import Link

link = next(each for each in gc.get_objects() if isinstance(each, Link))
run = Path(link.path).parent
kernel = get_ipython().kernel

def lasts():
    return SWITCH.exists()
"""
_FLOODS = {
    "reports to the executor": """
    while lasts():
        link.send(*[protocol.DeviceWantWithdrawnReport()] * 100)
    """,
    "connections to the executor": """
    kept = []
    while lasts():
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            connection.connect(link.path)
            connection.send(os.urandom(200))
            kept.append(connection)
        except OSError:
            time.sleep(0.001)
        del kept[:-300]
    """,
    "connections for descriptors": """
    while lasts():
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.setblocking(False)
                connection.connect(str(run / "memory.sock"))
                with open(os.devnull) as null:
                    for _ in range(100):
                        socket.send_fds(connection, [os.urandom(200)], [null.fileno()] * 10)
        except OSError:
            pass
    """,
    "output": """
    while lasts():
        print("x" * 10_000)
    """,
    "small outputs": """
    while lasts():
        print("x", flush=True)
    """,
    "comms": """
    from comm import create_comm
    while lasts():
        create_comm(target_name="x", data={"x": "x" * 1000})
    """,
    "requests for input": """
    while lasts():
        kernel.session.send(kernel.stdin_socket, "input_request", {"prompt": "x" * 100, "password": False},
                            parent=kernel.get_parent("shell"), ident=kernel._parent_ident["shell"])
        time.sleep(0.0005)
    """,
    "files": """
    number = 0
    while lasts():
        number += 1
        (SWITCH.parent / f"file-{number}").touch()
    """,
    "memory": """
    while lasts():
        try:
            kept = [bytearray(1 << 20) for _ in range(100_000)]
        except MemoryError:
            kept = None
    """,
    "device memory": """
    import torch
    while lasts():
        kept = []
        try:
            while lasts():
                kept.append(torch.ones(1 << 20))
        except (torch.OutOfMemoryError, MemoryError):
            pass
    """,
    "threads": """
    while lasts():
        threads = []
        try:
            while lasts() and len(threads) < 2000:
                threads.append(threading.Thread(target=time.sleep, args=(0.1,)))
                threads[-1].start()
        except RuntimeError:
            pass
    """,
    "children": """
    children = []
    while lasts():
        try:
            children.append(subprocess.Popen(["sleep", "1000"]))
        except OSError:
            pass
        if len(children) > 200:
            while children:
                child = children.pop()
                child.kill()
                child.wait()
    for child in children:
        child.kill()
        child.wait()
    """,
}


@dataclass(frozen=True)
class Street:
    """A stack and the neighbour's session."""

    stack: WarmStack
    grace: Client
    kernel: str

    def services(self) -> dict[str, psutil.Process]:
        """Return gateway and executor."""
        found = {}
        for name in ("gateway", "executor"):
            process = getattr(self.stack, name).process
            assert process is not None
            found[name] = psutil.Process(process.pid)
        return found


async def _work(client: Client, kernel: str, num_cells: int = _CELLS) -> None:
    """Run the neighbour's cells."""
    async with attached(client, kernel) as channels:
        count = int((await channels.run("int(count)"))["text"])
        for number in range(count + 1, count + 1 + num_cells):
            assert (await channels.run(_CELL))["text"] == f"{number}\n"
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def street() -> Iterator[Street]:
    """Start the stack, and the neighbour's session."""
    with WarmStack(users=["admin", "grace", "mallory"], capacity="1GiB") as stack:
        grace = Client(stack.gateway_url, stack.token("grace"))

        async def prepare() -> str:
            kernel = await grace.start()
            async with attached(grace, kernel) as channels:
                await channels.run("import torch; count = torch.zeros(1)")
            await _work(grace, kernel, 3)
            return kernel

        yield Street(stack, grace, asyncio.run(prepare()))


async def _drain(channels: Channels) -> None:
    """Read what comes, as a page does."""
    with contextlib.suppress(AssertionError, TimeoutError):
        while await channels.receive() is not None:
            pass


@pytest.mark.parametrize("flood", _FLOODS)
async def test_a_flood_keeps_the_neighbour_from_nothing(street: Street, tmp_path: Path, flood: str) -> None:
    """Her cells all come back, services stay below a bound, and the greedy session can be ended afterwards."""
    switch = tmp_path / "flooding"

    try:
        mallory = Client(street.stack.gateway_url, street.stack.token("mallory"))
        kernel = await mallory.start()
        began = tmp_path / "began"
        code = f"{_PRELUDE.replace('SWITCH', f'Path({str(switch)!r})')}\nPath({str(began)!r}).touch()\nif True:"
        code += _FLOODS[flood].replace("SWITCH", f"Path({str(switch)!r})")
        switch.touch()
        largest = dict.fromkeys(street.services(), 0)
        async with mallory.attach(kernel) as channels:
            await channels.send("execute_request", {"code": code, "silent": False, "allow_stdin": True})
            reading = asyncio.create_task(_drain(channels))
            await until(lambda: asyncio.to_thread(began.exists), "the flood has begun")
            working = asyncio.create_task(_work(street.grace, street.kernel))
            while not working.done():
                for name, process in street.services().items():
                    memory = await asyncio.to_thread(process.memory_full_info)
                    largest[name] = max(largest[name], memory.pss)
                await asyncio.wait([working], timeout=0.2)
            switch.unlink()
            await working
        async with asyncio.timeout(PATIENCE):
            await reading  # until it is closed at both ends
            await mallory.request("DELETE", f"/api/kernels/{kernel}?linger=0")
            await _work(street.grace, street.kernel, 3)
        assert max(largest.values()) < _MOST_MEMORY, largest
    finally:
        switch.unlink(missing_ok=True)
