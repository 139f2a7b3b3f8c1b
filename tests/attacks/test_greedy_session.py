"""One session that floods everything it can reach, beside a neighbour's who works: her cells all come back.

The services stay small meanwhile. How much longer her cells take depends on the machine, as what takes processors does
so by design.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import psutil
import pytest

from tests.attacks.conftest import Scene
from tests.executor.harness import until
from tests.fuzz.conftest import attached, execute
from tests.gateway.client import PATIENCE, Channels, Client

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
    while lasts() or children:
        try:
            children.append(subprocess.Popen(["sleep", "1000"]))
        except OSError:
            pass
        while children and not (lasts() and len(children) <= 200):
            child = children.pop()
            child.kill()
            child.wait()
    """,
}


async def _work(client: Client, kernel: str, num_cells: int = _CELLS) -> None:
    """Run the neighbour's cells."""
    async with attached(client, kernel) as channels:
        count = int((await channels.run("int(count)"))["text"])
        for number in range(count + 1, count + 1 + num_cells):
            assert (await channels.run(_CELL))["text"] == f"{number}\n"
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def neighbours(scene: Scene) -> str:
    """Return the session of the neighbour who works."""

    async def prepare() -> str:
        kernel = await scene.grace.start()
        await execute(scene.grace, kernel, "import torch; count = torch.zeros(1)")
        await _work(scene.grace, kernel, 3)
        return kernel

    return asyncio.run(prepare())


async def _drain(channels: Channels) -> None:
    """Read what comes, as a page does."""
    with contextlib.suppress(AssertionError, TimeoutError):
        while await channels.receive() is not None:
            pass


@pytest.mark.parametrize("flood", _FLOODS)
async def test_a_flood_keeps_the_neighbour_from_nothing(
    scene: Scene, neighbours: str, tmp_path: Path, flood: str
) -> None:
    """Her cells all come back, services stay below a bound, and the greedy session can be ended afterwards."""
    services = {name: psutil.Process(getattr(scene.stack, name).process.pid) for name in ("gateway", "executor")}
    largest = dict.fromkeys(services, 0)
    began, switch = tmp_path / "began", tmp_path / "flooding"
    code = f"{_PRELUDE}\nPath({str(began)!r}).touch()\nif True:{_FLOODS[flood]}"
    code = code.replace("SWITCH", f"Path({str(switch)!r})")
    try:
        kernel = await scene.mallory.start()
        switch.touch()
        async with scene.mallory.attach(kernel) as channels:
            await channels.send("execute_request", {"code": code, "silent": False, "allow_stdin": True})
            reading = asyncio.create_task(_drain(channels))
            await until(lambda: asyncio.to_thread(began.exists), "the flood has begun")
            working = asyncio.create_task(_work(scene.grace, neighbours))
            while not working.done():
                for name, service in services.items():
                    memory = await asyncio.to_thread(service.memory_full_info)
                    largest[name] = max(largest[name], memory.pss)
                await asyncio.wait([working], timeout=0.2)
            switch.unlink()
            await working
        async with asyncio.timeout(PATIENCE):
            await reading  # until it is closed at both ends
            await scene.mallory.request("DELETE", f"/api/kernels/{kernel}?linger=0")
            await _work(scene.grace, neighbours, 3)
        assert max(largest.values()) < _MOST_MEMORY, largest
    finally:
        switch.unlink(missing_ok=True)
