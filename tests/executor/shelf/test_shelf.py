"""The shelf in real sessions: what it outlives, who reaches it, and what it costs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.errors import Refused
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.paths import EXECUTOR_SOCKET, SHELF_DIRECTORY
from sharedkernel.protocol import Limits
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, until
from tests.status.documents import to_json

IMPORT = "import torch; from sharedkernel import shelf\n"
MODEL = IMPORT + (
    "torch.manual_seed(0)\nmodel = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))\n"
    "total = lambda: float(sum(each.double().sum() for each in model.state_dict().values()))\n"
)
CHANGE = MODEL + "torch.nn.init.constant_(model[0].weight, 3.0)\nshelf['model'] = model.state_dict()\ntotal()"
LOAD = MODEL + "assert model.load_state_dict(shelf['model']).missing_keys == []\ntotal()"


@pytest.mark.heavy
async def test_a_shelf_outlives_kernels_and_executors(process: ExecutorProcess) -> None:
    """A segmentation fault, a kernel shut down, an executor killed without any session: the next one loads the model.

    Also what is off it and still in use stays charged; the files are what safetensors' own programs read.
    """
    async with Executor(process) as executor:
        notebook = await executor.notebook("crashing")
        expected = (await notebook.run(CHANGE)).text
        assert float(expected) > 100
        died = executor.told_of_end()
        notebook.client.execute("kept = shelf['model']\nimport ctypes; ctypes.string_at(0)")
        await asyncio.wait_for(died, PATIENCE)
        notebook = await executor.notebook("crashing", session=notebook.session)
        assert (await notebook.run(LOAD)).text == expected
        await notebook.run("gone = shelf['gone'] = torch.ones(1); gone = shelf['gone']; del shelf['gone']")
        await executor.replace()
        assert (await notebook.run(LOAD)).text == expected
        assert (await notebook.run("list(shelf)")).text == "['model']"
        assert "4.0 KiB taken off it are still in use" in (await notebook.run("shelf")).text
        await notebook.run("del gone")

        async def is_freed() -> bool:
            return "in use" not in (await notebook.run("shelf")).text

        await until(is_freed, "what nobody uses is free")
        await executor.client.end_session(notebook.session)
        async with executor.away():
            (file,) = (process.runtime_directory / SHELF_DIRECTORY / "crashing").iterdir()
            assert file.suffix == ".safetensors"
        notebook = await executor.notebook("crashing")
        assert (await notebook.run(LOAD)).text == expected
        assert (await notebook.run("del shelf['model']; list(shelf)")).text == "[]"


async def test_who_has_left_is_in_the_status_while_something_is_on_their_shelf(process: ExecutorProcess) -> None:
    """Or while they have a session; what their sessions had of the device still counts when they come back."""
    async with Executor(process) as executor:

        async def service() -> float | None:
            users = {user.name: user.attained_service_seconds for user in (await executor.client.status()).users}
            return users.get("leaving")

        notebook = await executor.notebook("leaving")
        await notebook.run(IMPORT + "shelf['x'] = torch.ones(1)")
        await executor.client.configure_users([Limits(user="leaving")], left=["leaving"])
        assert await service() is not None
        await executor.client.end_session(notebook.session)
        had = await service()
        assert had
        await executor.client.take_off_shelf("leaving")
        assert await service() is None
        await executor.notebook("leaving")
        assert (await service() or 0.0) >= had


async def test_another_user_finds_nothing(process: ExecutorProcess) -> None:
    """No name, no bytes, nothing to delete; a name of one's own is another thing."""
    async with Executor(process) as executor:
        owner, other = await executor.notebooks("owner", "other")
        await owner.run(IMPORT + "shelf['x'] = torch.ones(3)")
        assert (await other.run(IMPORT + "(list(shelf), len(shelf), 'x' in shelf)")).text == "([], 0, False)"
        for code in ("shelf['x']", "del shelf['x']", "shelf.copy('x')"):
            outcome = await other.run(code)
            assert (outcome.error, "there is no 'x' on your shelf" in outcome.message) == ("KeyError", True)
        await other.run("shelf['x'] = torch.zeros(5)")
        assert (await owner.run("shelf['x'].tolist()")).text == "[1.0, 1.0, 1.0]"
        assert (await owner.run("shelf")).text.splitlines()[1].startswith("x     4.0 KiB  20")
        users = {user["name"]: user["shelf_bytes"] for user in to_json(await executor.client.status())["users"]}
        assert (users["owner"], users["other"]) == (4096, 4096)


async def test_two_kernels_have_the_same_bytes(process: ExecutorProcess) -> None:
    """What one writes the other sees; reading takes no memory of a kernel's own; a copy is one's own.

    There may be thousands of tensors, with a layout longer than a packet.
    """
    own_bytes = "own = lambda: int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) >> 10\n"

    write = "shelf['many'] = {f'layer{i}.weight': torch.full((7,), float(i)) for i in range(5000)}"
    check = "found = shelf['many']; len(found), all(bool((t == i).all()) for i, t in enumerate(found.values()))"

    async with Executor(process) as executor:
        one, two = await executor.notebooks("sharing", "sharing")
        await one.run(IMPORT + "shelf['big'] = {'x': torch.ones(64 << 20)}; x = shelf['big']['x']")
        reading = own_bytes + "before = own(); y = shelf['big']['x']; s = float(y.sum()); (s, own() - before < 64)"
        assert (await two.run(IMPORT + reading)).text == f"({float(64 << 20)}, True)"
        await one.run("x[5] = 7")
        assert (await two.run("float(y[5])")).text == "7.0"
        copying = "mine = shelf.copy('big')['x']; mine[5] = 8; (float(y[5]), float(shelf['big']['x'][5]))"
        assert (await two.run(copying)).text == "(7.0, 7.0)"
        await one.run("shelf['big'] = torch.zeros(1)")  # replaced as a whole: who has the old one keeps it
        assert (await two.run("float(y[5]), float(shelf['big'])")).text == "(7.0, 0.0)"
        await one.run(write)
        assert (await two.run(check)).text == "(5000, True)"


async def test_beyond_the_quota_a_cell_gets_one_sentence_and_loses_nothing(process: ExecutorProcess) -> None:
    """With the figures; the tensor is there, the shelf is as it was, and after a deletion there is room.

    Neither does one that cannot be shelved; a mistaken name is a TypeError.
    """
    limits = Limits(user="frugal", quota_bytes=256 << 20)

    async with Executor(process) as executor:
        notebook = await executor.notebook(limits=limits)
        outcome = await notebook.run(IMPORT + "shelf['x'] = {'model': torch.nn.Linear(2, 2)}")
        assert outcome.error == "TypeError"
        assert "the value at ['model'] is of the type torch.nn.modules.linear.Linear" in outcome.message
        assert (await notebook.run("shelf[3] = 1")).message == "names on a shelf are text, not int."
        assert (await notebook.run("shelf")).text.startswith("Nothing is on your shelf; ")
        assert (await notebook.run("x = torch.ones(25 << 20); shelf['a'] = x")).status == "ok"
        outcome = await notebook.run("shelf['b'] = x")
        assert outcome.error == "QuotaExceeded"
        assert "'b' needs 100 MiB on the shelf, and 5" in outcome.message
        assert "your quota is 256 MiB, your sessions use 10" in outcome.message
        assert "your shelf 100 MiB. Nothing was changed" in outcome.message
        assert (await notebook.run("float(x.sum()), float(shelf['a'].sum()), list(shelf)")).text == (
            f"({float(25 << 20)}, {float(25 << 20)}, ['a'])"
        )
        assert (await notebook.run("del shelf['a']; shelf['b'] = x; list(shelf)")).text == "['b']"


async def test_a_shelf_is_the_notebooks_own_process_business(process: ExecutorProcess) -> None:
    """A program that it starts inherits no descriptor, a forked one is refused, and leaves the parent's way alone."""
    programs = "import subprocess; subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True, text=True).stdout"
    fork = (
        "import os, sys\nfrom multiprocessing import get_context\n"
        "def child(queue):\n    try:\n        queue.put(len(shelf))\n    except Exception as error:\n"
        "        queue.put(str(error))\n"
        "context = get_context('fork')\nqueue = context.Queue()\n"
        "worker = context.Process(target=child, args=(queue,))\n"
        "worker.start()\nanswer = queue.get()\nworker.join()\nanswer"
    )

    async with Executor(process) as executor:
        notebook = await executor.notebook("forking")
        await notebook.run(IMPORT + "shelf['x'] = torch.ones(9); x = shelf['x']")
        listed = (await notebook.run(programs)).text
        assert "/dev/null" in listed or "pipe:" in listed
        assert "sharedkernel" not in listed
        assert "only a notebook's own process is served here" in (await notebook.run(fork)).text
        assert (await notebook.run("len(shelf), float(x.sum())")).text == "(1, 9.0)"


async def test_a_wait_for_the_executor_can_be_interrupted(process: ExecutorProcess) -> None:
    """While the executor does not answer a cell waits; an interrupt ends it, and the next one works."""
    async with Executor(process) as executor:
        notebook = await executor.notebook("waiting")
        await notebook.run(IMPORT + "shelf['x'] = torch.ones(3)")
        executor.process.process.send_signal(signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(notebook.run("print('begins', flush=True); display(1); shelf['x']"))
            await asyncio.wait_for(notebook.displayed.wait(), PATIENCE)
            os.kill(notebook.record.pid, signal.SIGINT)
            assert (await waiting).error == "KeyboardInterrupt"
        finally:
            executor.process.process.send_signal(signal.SIGCONT)
        assert (await notebook.run("shelf['x'].tolist()")).text == "[1.0, 1.0, 1.0]"


def test_elsewhere_a_shelf_says_where_there_is_one() -> None:
    """Importing it takes neither torch nor the control protocol; using it is an error of one sentence."""
    code = (
        "import sys, sharedkernel\nfrom sharedkernel.errors import SharedKernelError\n"
        "assert not {'torch', 'msgspec', 'asyncio'} & set(sys.modules)\n"
        "print(repr(sharedkernel.shelf))\n"
        "try:\n    sharedkernel.shelf['x'] = 1\nexcept SharedKernelError as error:\n    print(error)\n"
        "assert 'msgspec' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    sentence = (
        'a shelf exists only inside a notebook with the kernel "Shared GPU (PyTorch)"; pick that kernel to use it.'
    )
    assert said.splitlines() == [f"<Shelf: {sentence}>", sentence]


async def test_an_executor_of_an_earlier_version_is_not_asked_for_what_it_does_not_know(scratch: Path) -> None:
    """It would hang up on that; a sentence says so, and the connection stays for all else."""
    device = protocol.Device(name="host", kind="host", capacity_bytes=1 << 30, reserve_bytes=0)
    welcome = protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=device, requests=["ListSessions"])
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(protocol.encode(welcome))
        after = await reader.read(1 << 16)
        writer.close()
        await writer.wait_closed()
        heard.set_result(after)

    client = ExecutorClient(scratch, role="gateway")
    async with await asyncio.start_unix_server(greet, scratch / EXECUTOR_SOCKET):
        await client.connect()
        for request in (client.shelves(), client.take_off_shelf("ada")):
            with pytest.raises(Refused, match="is of an earlier version of sharedkernel, which") as refused:
                await request
            assert refused.value.reason == "earlier_version"
        assert client.connected
        await client.close()
        assert await asyncio.wait_for(heard, PATIENCE) == b""
