"""Sessions of a real executor: cells, turns, interrupts, quotas, and how they end."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import psutil
import pytest

from sharedkernel.errors import Refused, SessionNotFound
from sharedkernel.protocol import Limits
from tests.executor.harness import PATIENCE, SECRET, Executor, ExecutorProcess, Notebook, until
from tests.status.documents import to_json

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


async def test_tensors_stay_between_cells_and_python_needs_no_device(process: ExecutorProcess) -> None:
    """Plain Python runs without the device; a tensor is there in the next cell and is charged to its user."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run("1 + 1")).text == "2"
        assert (await executor.session(notebook))["attained_service_seconds"] == 0
        await notebook.run("import torch; x = torch.ones(2048, 1024)")
        assert (await notebook.run("float(x.sum())")).text == str(2048.0 * 1024)
        session = await executor.session(notebook)
        assert session["attained_service_seconds"] > 0
        assert session["persistent_bytes"] >= 8 << 20
        assert session["state"] == "idle"


async def test_two_trainings_take_turns_and_compute_what_they_would_alone(process: ExecutorProcess) -> None:
    """Both users get device time, both switch, and sharing changes no bit of either's loss."""
    async with Executor(process) as executor:
        ada, grace = await executor.notebook("ada"), await executor.notebook("grace")
        await asyncio.gather(ada.run(TRAIN), grace.run(TRAIN))
        alone = await ada.run("train(600)")
        await ada.run(TRAIN)
        together = await asyncio.gather(ada.run("train(600)"), grace.run("train(600)"))
        assert [outcome.text for outcome in together] == [alone.text, alone.text]
        served = {
            user["name"]: user["attained_service_seconds"] for user in to_json(await executor.client.status())["users"]
        }
        assert served["ada"] > 0
        assert served["grace"] > 0


async def test_a_short_cell_gets_in_beside_endless_ones(process: ExecutorProcess) -> None:
    """A training without any boundary, and one with, do not keep a short cell out."""
    async with Executor(process) as executor:
        endless, bare, short = [await executor.notebook(user) for user in ("ada", "grace", "lin")]
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
async def test_code_that_spins_in_c_is_stopped_for_others(process: ExecutorProcess) -> None:
    """A holder deep in a foreign call hears no signal; others run all the same, and it is not hurt."""
    async with Executor(process) as executor:
        spinning, other = await executor.notebook("ada"), await executor.notebook("grace")
        await spinning.run("import torch, hashlib; x = torch.ones(3)")
        # One call that does not come back to Python for seconds, right after the device was used.
        spin = "x + 1; d = hashlib.pbkdf2_hmac('sha256', b'', b'', 20_000_000)"
        task = asyncio.create_task(spinning.run(spin))
        await until(lambda: is_running(executor, spinning), "it holds the device")
        assert (await other.run("import torch; int(torch.ones(10).sum())")).text == "10"
        assert not task.done()
        assert (await task).status == "ok"
        assert (await spinning.run("int(x.sum())")).text == "3"


@pytest.mark.heavy
async def test_interrupt_while_queued_takes_the_cell_out_of_the_queue(fifo_process: ExecutorProcess) -> None:
    """A waiting cell shows why it waits, ends with KeyboardInterrupt, and the next one works."""
    async with Executor(fifo_process) as executor:
        holder, waiter = await executor.notebook("ada"), await executor.notebook("grace")
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
        limits = Limits(user="ada", quota_bytes=256 << 20)
        notebook = await executor.notebook(limits=limits)
        await notebook.run("import torch; kept = torch.ones(25 << 20)")  # 100 MiB
        outcome = await notebook.run("big = torch.empty(1 << 30); big.fill_(1)")
        assert outcome.error == "OutOfMemoryError"
        assert "256 MiB" in outcome.message
        assert (await notebook.run("int(kept.sum())")).text == str(25 << 20)
        other = await executor.notebook(limits=limits)
        outcome = await other.run("import torch\nparts = [torch.ones(25 << 20) for _ in range(4)]")
        assert outcome.error == "OutOfMemoryError"
        # the session says so itself, or the executor, if it was asked for the memory first
        assert re.search(r"your (other sessions use 10\d|sessions use [12]\d\d) MiB", outcome.message)
        assert (await notebook.run("int(kept.sum())")).text == str(25 << 20)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os._exit(3)", "exited by itself with code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the machine had run out of memory"),
    ],
)
async def test_a_crash_is_told_and_touches_nobody_else(process: ExecutorProcess, code: str, expected: str) -> None:
    """The session's end is told with its cause; another user's session goes on."""
    async with Executor(process) as executor:
        died = executor.told_of_end()
        crashing, other = await executor.notebook("ada"), await executor.notebook("grace")
        await other.run("import torch; x = torch.ones(5)")
        crashing.client.execute(f"import torch; y = torch.ones(5)\n{code}")
        assert expected in await asyncio.wait_for(died, PATIENCE)
        assert (await other.run("int(x.sum())")).text == "5"
        with pytest.raises(SessionNotFound):
            await executor.client.signal_session(crashing.session, signal.SIGINT)
        again = await executor.notebook("ada", session=crashing.session)
        assert again.record.incarnation > crashing.record.incarnation
        assert (await again.run("'y' in globals()")).text == "False"


@pytest.mark.heavy
async def test_a_crash_is_told_though_its_parent_does_nothing(process: ExecutorProcess) -> None:
    """Until a process is reaped, the system itself tells how it ended."""
    async with Executor(process) as executor:
        died = executor.told_of_end()
        notebook = await executor.notebook()
        parent = psutil.Process(notebook.record.pid).parent()
        assert parent is not None
        parent.suspend()
        try:
            os.kill(notebook.record.pid, signal.SIGSEGV)
            assert "SIGSEGV" in await asyncio.wait_for(died, PATIENCE)
        finally:
            parent.resume()


async def test_forks_and_worker_processes_do_not_disturb(process: ExecutorProcess) -> None:
    """A forked child and a DataLoader's workers compute freely; the session is itself afterwards."""
    async with Executor(process) as executor:
        notebook, other = await executor.notebook("ada"), await executor.notebook("grace")
        fork = (
            "import os, torch\nx = torch.ones(4)\npid = os.fork()\n"
            "if pid == 0:\n    (x + 1).sum(); os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        assert (await notebook.run(fork)).text == "7"
        load = (
            "from torch.utils.data import DataLoader, TensorDataset\n"
            "data = DataLoader(TensorDataset(torch.arange(64.)), batch_size=8, num_workers=2)\n"
            "sum(float(batch.sum()) for batch, in data)"
        )
        assert (await notebook.run(load)).text == "2016.0"
        assert (await other.run("import torch; int(torch.ones(3).sum())")).text == "3"


async def test_callbacks_and_subshells_pass_the_gate(process: ExecutorProcess) -> None:
    """Device work outside cells is held under grants as well."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
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


async def test_sessions_are_separate(process: ExecutorProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Own random numbers, own environment without the executor's secrets, the notebook's folder or home."""
    folder = tmp_path_factory.mktemp("notebooks")

    async with Executor(process) as executor:
        first = await executor.notebook(cwd=str(folder), env={"KERNEL_COURSE": "ml"})
        second = await executor.notebook(cwd="/no/such/folder")
        draw = "import torch, numpy, random; (torch.rand(1).item(), numpy.random.rand(), random.random())"
        assert (await first.run(draw)).text != (await second.run(draw)).text.splitlines()[-1]
        assert (await first.run("import os; os.getcwd()")).text == repr(str(folder))
        environment = (await first.run("open('/proc/self/environ').read() + str(dict(os.environ))")).text
        assert SECRET not in environment
        assert "KERNEL_COURSE" in environment
        outcome = await executor.notebook(cwd="/no/such/folder")
        told = await outcome.run("import os; os.getcwd() == os.path.expanduser('~')")
        assert "/no/such/folder is not on the machine" in told.text
        assert told.text.endswith("True")


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


async def test_a_session_s_process_is_called_after_user_and_notebook(process: ExecutorProcess) -> None:
    """In lists of processes."""
    async with Executor(process) as executor:
        notebook = await executor.notebook(notebook="lessons/train.ipynb")
        session = psutil.Process(notebook.record.pid)
        assert "".join(session.cmdline()) == "sharedkernel: ada · train.ipynb"
        assert session.name() == "sk ada"
