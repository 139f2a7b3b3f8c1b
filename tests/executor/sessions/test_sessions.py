"""Sessions of a real executor: cells, turns, interrupts, quotas, and how they end."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import mmap
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from sharedkernel.errors import Refused, SessionNotFound
from sharedkernel.protocol import Limits
from tests.executor.harness import PATIENCE, SECRET, Executor, ExecutorProcess, Notebook, until

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)  # several threads of several sessions on two processors wait for each other
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(64, 32), torch.randint(0, 4, (64,))
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return loss.item()
"""
FOREVER = "while True:\n    train(1)"


async def state(executor: Executor, notebook: Notebook) -> str:
    return (await executor.session(notebook))["state"]


async def is_running(executor: Executor, notebook: Notebook) -> bool:
    return await state(executor, notebook) in ("running", "preempting", "queued")


def lock_in(path: str) -> ctypes._Pointer[ctypes.c_int]:
    """Return a lock of the C library's that is in a file, and so in all processes that call this."""
    with open(path, "r+b") as file:
        return ctypes.pointer(ctypes.c_int.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE)))


async def test_two_trainings_take_turns_and_compute_what_they_would_alone(process: ExecutorProcess) -> None:
    """Both users get device time, both switch, and sharing changes no bit of either's loss."""
    async with Executor(process) as executor:
        ada, grace = await executor.notebooks("ada", "grace")
        await asyncio.gather(ada.run(TRAIN), grace.run(TRAIN))
        alone = await ada.run("train(600)")
        await ada.run(TRAIN)
        together = await asyncio.gather(ada.run("train(600)"), grace.run("train(600)"))
        assert [outcome.text for outcome in together] == [alone.text, alone.text]
        for notebook in (ada, grace):
            assert (await executor.session(notebook))["attained_service_seconds"] > 0


async def test_a_short_cell_gets_in_beside_endless_ones(process: ExecutorProcess) -> None:
    """A training without any boundary, and one with, do not keep a short cell out."""
    async with Executor(process) as executor:
        endless, bare, short = await executor.notebooks("ada", "grace", "lin")
        await asyncio.gather(endless.run(TRAIN), bare.run("import torch; a = torch.ones(64, 64)"))
        tasks = [
            asyncio.create_task(endless.run(FOREVER)),
            asyncio.create_task(bare.run("def spin(a):\n  while True: a = a @ a * 0\nspin(a)")),
        ]
        await until(lambda: is_running(executor, endless), "the training runs")
        await until(lambda: is_running(executor, bare), "the loop runs")
        for _ in range(5):
            assert (await short.run("import torch; int(torch.ones(10).sum())")).text == "10"
        for notebook in (endless, bare):
            await executor.client.signal_session(notebook.session, signal.SIGINT)
        assert {outcome.error for outcome in await asyncio.gather(*tasks)} == {"KeyboardInterrupt"}
        assert (await bare.run("int(a.sum() * 0)")).text == "0"


@pytest.mark.heavy
async def test_code_that_spins_in_c_is_stopped_for_others(process: ExecutorProcess, tmp_path: Path) -> None:
    """A holder deep in a foreign call hears no signal; others run all the same, and it is not hurt."""
    path = tmp_path / "lock"
    path.write_bytes(bytes(mmap.PAGESIZE))
    libc, lock = ctypes.CDLL(None), lock_in(str(path))
    libc.pthread_spin_init(lock, 1)  # for several processes
    libc.pthread_spin_lock(lock)
    prepare = f"from __future__ import annotations\nimport ctypes, mmap, torch\n{inspect.getsource(lock_in)}"

    async with Executor(process) as executor:
        spinning, other = await executor.notebooks("ada", "grace")
        await spinning.run(f"{prepare}\nlock = lock_in({str(path)!r})")
        # One call that does not come back to Python until this process lets it, right after the device was used.
        task = asyncio.create_task(spinning.run("x = torch.ones(3); ctypes.CDLL(None).pthread_spin_lock(lock)"))
        await until(lambda: is_running(executor, spinning), "it holds the device")
        assert (await other.run("import torch; int(torch.ones(10).sum())")).text == "10"
        assert not task.done()
        libc.pthread_spin_unlock(lock)
        assert (await task).status == "ok"
        assert (await spinning.run("int(x.sum())")).text == "3"


@pytest.mark.heavy
async def test_interrupt_while_queued_takes_the_cell_out_of_the_queue(fifo_process: ExecutorProcess) -> None:
    """A waiting cell shows why it waits, ends with KeyboardInterrupt, and the next one works."""
    async with Executor(fifo_process) as executor:
        holder, waiter = await executor.notebooks("ada", "grace")
        await holder.run(TRAIN)
        running = asyncio.create_task(holder.run(FOREVER))
        await until(lambda: is_running(executor, holder), "the training runs")
        waiting = asyncio.create_task(waiter.run("import torch; y = torch.ones(3)"))
        await executor.until_session(
            waiter, lambda session: session["state"] == "queued" and session["queue_position"] == 1, "the other waits"
        )
        await waiter.shows("(ada), place 1 in the queue")  # the wait is told in the notebook
        await executor.client.signal_session(waiter.session, signal.SIGINT)
        outcome = await waiting
        assert outcome.error == "KeyboardInterrupt"
        assert any("Waiting" in text and "(ada), place 1 in the queue" in text for text in outcome.displays)
        assert outcome.displays[-1] == ""
        assert await state(executor, waiter) == "idle"
        assert (await waiter.run("1 + 1")).text == "2"
        await executor.client.signal_session(holder.session, signal.SIGINT)
        assert (await running).error == "KeyboardInterrupt"
        assert (await waiter.run("import torch; int(torch.ones(3).sum())")).text == "3"


async def test_quota_raises_out_of_memory_with_figures_and_loses_nothing(process: ExecutorProcess) -> None:
    """Over quota: a torch.OutOfMemoryError in that cell, session and tensors intact, also over two sessions."""
    async with Executor(process) as executor:
        notebook, other = await executor.notebooks("ada", "ada", limits=Limits(user="ada", quota_bytes=256 << 20))
        await notebook.run("import torch; kept = torch.ones(25 << 20)")  # 100 MiB
        outcome = await notebook.run("big = torch.empty(1 << 30); big.fill_(1)")
        assert outcome.error == "OutOfMemoryError"
        assert "256 MiB" in outcome.message
        assert (await notebook.run("int(kept.sum())")).text == str(25 << 20)
        outcome = await other.run("import torch\nparts = [torch.ones(25 << 20) for _ in range(4)]")
        assert outcome.error == "OutOfMemoryError"
        # the session says so itself, or the executor, if it was asked for the memory first
        assert re.search(r"your (other sessions use 10\d|sessions use [12]\d\d) MiB", outcome.message)
        assert (await notebook.run("int(kept.sum())")).text == str(25 << 20)


async def test_a_crash_is_told_and_touches_nobody_else(process: ExecutorProcess) -> None:
    """The session's end is told with its cause; another user's session goes on.

    Until a process is reaped, the system itself tells how it ended, though its parent does nothing.
    """
    async with Executor(process) as executor:
        crashing, other = await executor.notebooks("ada", "grace")
        await other.run("import torch; x = torch.ones(5)")
        for code, expected in (
            ("import os; os._exit(3)", "exited by itself with code 3"),
            ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the machine had run out of memory"),
        ):
            died = executor.told_of_end()
            crashing.client.execute(f"import torch; y = torch.ones(5)\n{code}")
            assert expected in await asyncio.wait_for(died, PATIENCE)
            assert (await other.run("int(x.sum())")).text == "5"
            with pytest.raises(SessionNotFound):
                await executor.client.signal_session(crashing.session, signal.SIGINT)
            before, crashing = crashing, await executor.notebook("ada", session=crashing.session)
            assert crashing.record.incarnation > before.record.incarnation
            assert (await crashing.run("'y' in globals()")).text == "False"
        died = executor.told_of_end()
        parent = psutil.Process(psutil.Process(crashing.record.pid).ppid())
        parent.suspend()
        try:
            os.kill(crashing.record.pid, signal.SIGSEGV)
            assert "SIGSEGV" in await asyncio.wait_for(died, PATIENCE)
        finally:
            parent.resume()


async def test_callbacks_and_subshells_pass_the_gate(process: ExecutorProcess) -> None:
    """Plain Python runs without the device; device work outside cells is held under grants as well."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run("1 + 1")).text == "2"
        assert (await executor.session(notebook))["attained_service_seconds"] == 0
        await notebook.run("import torch, asyncio\nasync def later():\n    global y\n    y = torch.ones(500, 500) @ x")
        await notebook.run("x = torch.ones(500, 500)")
        before = (await executor.session(notebook))["attained_service_seconds"]
        await notebook.run("task = asyncio.get_running_loop().create_task(later())")
        await executor.until_session(
            notebook,
            lambda entry: entry["attained_service_seconds"] > before,
            "the background task was granted the device",
        )
        assert (await notebook.run("int(y[0, 0])")).text == "500"
        assert await state(executor, notebook) == "idle"

        client = notebook.client
        created = client.session.msg("create_subshell_request")
        client.control_channel.send(created)
        reply = await client.get_control_msg(timeout=PATIENCE)
        request = client.session.msg("execute_request", {"code": "z = (x @ x).sum()", "silent": False})
        request["header"]["subshell_id"] = reply["content"]["subshell_id"]
        before = (await executor.session(notebook))["attained_service_seconds"]
        client.shell_channel.send(request)
        assert (await client.get_shell_msg(timeout=PATIENCE))["content"]["status"] == "ok"
        assert (await executor.session(notebook))["attained_service_seconds"] > before
        assert (await notebook.run("int(z)")).text == str(500**3)


async def test_sessions_are_separate(process: ExecutorProcess, tmp_path: Path) -> None:
    """Own random numbers, own environment without the executor's secrets, the notebook's folder or home.

    In lists of processes, each is called after its user and notebook.
    """
    async with Executor(process) as executor:
        first, second = await asyncio.gather(
            executor.notebook(notebook="lessons/train.ipynb", cwd=str(tmp_path), env={"KERNEL_COURSE": "ml"}),
            executor.notebook(cwd="/no/such/folder"),
        )
        told = (await second.run("import os; os.getcwd() == os.path.expanduser('~')")).text
        assert "/no/such/folder is not on the machine" in told
        assert told.endswith("True")
        session = psutil.Process(first.record.pid)
        assert ("".join(session.cmdline()), session.name()) == ("sharedkernel: ada · train.ipynb", "sk ada")
        draw = "import torch, numpy, random; (torch.rand(1).item(), numpy.random.rand(), random.random())"
        assert (await first.run(draw)).text != (await second.run(draw)).text
        assert (await first.run("import os; os.getcwd()")).text == repr(str(tmp_path))
        environment = (await first.run("open('/proc/self/environ').read() + str(dict(os.environ))")).text
        assert SECRET not in environment
        assert "KERNEL_COURSE" in environment


async def test_a_lingering_session_is_given_back_once(process: ExecutorProcess) -> None:
    """Whoever comes second is told so, unless it takes what its client has left; who asks twice has it anyway."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("kept = 1")
        await executor.client.linger_session(notebook.session, 3600.0)

        incarnations = [notebook.record.incarnation]

        async def take(kernel: str, *, if_lingering: bool = True) -> str | None:
            record = await executor.client.reclaim_session(
                notebook.session, kernel=kernel, notebook=None, client_key=None, if_lingering=if_lingering
            )
            assert record.lingers is None
            incarnations.append(record.incarnation)
            return record.kernel

        assert await take("first") == "first"
        with pytest.raises(Refused, match="another notebook"):
            await take("second")
        assert await take("first") == "first"
        assert await take("second", if_lingering=False) == "second"
        assert incarnations == sorted(set(incarnations))  # the last is told from what was there before
        (record,) = await executor.client.sessions()
        assert record.incarnation == incarnations[-1]


async def test_a_session_that_is_ending_is_not_given_back(process: ExecutorProcess) -> None:
    """Its time is over, and it may only take a while to go: whoever got it would lose it, and their own for it."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        ending = asyncio.create_task(executor.client.end_session(notebook.session))
        await asyncio.sleep(0)  # it is asked for first
        with pytest.raises(SessionNotFound, match="ending"):
            await executor.client.reclaim_session(notebook.session, kernel="another", notebook=None, client_key=None)
        await ending


async def debug(notebook: Notebook, command: str, **arguments: Any) -> dict[str, Any]:
    """Return the content of the reply to a request of JupyterLab's debugger."""
    client = notebook.client
    content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
    request = client.session.msg("debug_request", content)
    client.control_channel.send(request)
    while True:
        reply = await client.get_control_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
            return dict(reply["content"])


async def test_the_debugger_can_be_used(process: ExecutorProcess) -> None:
    """It is offered, and starts."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        information = await notebook.client.kernel_info(reply=True)
        assert "debugger" in information["content"]["supported_features"]
        assert (await debug(notebook, "initialize", clientID="c", adapterID="", pathFormat="path"))["success"]
        assert (await debug(notebook, "disconnect", restart=False, terminateDebuggee=False))["success"]


async def test_a_client_may_connect_its_socket_for_input_after_the_cell_has_asked(process: ExecutorProcess) -> None:
    """The question is not lost, as ZeroMQ would have it; and so the cell does not wait for ever."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        client = AsyncKernelClient()
        connection = notebook.record.connection
        client.load_connection_info({**connection, "key": connection["key"].encode()})
        client.start_channels(hb=False, stdin=False)
        try:
            client.execute("print('asking', flush=True); print(input())", allow_stdin=True)
            await heard(client, "asking\n")
            client.stdin_channel.start()
            question = await client.get_stdin_msg(timeout=PATIENCE)
            assert question["msg_type"] == "input_request"
            client.input("an answer")
            await heard(client, "an answer\n")
        finally:
            client.stop_channels()
            client.context.term()


async def heard(client: AsyncKernelClient, text: str) -> None:
    """Return once the cell has printed *text*."""
    while True:
        message = await client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and text in message["content"]["text"]:
            return
