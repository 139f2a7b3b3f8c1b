"""Nothing is lost: the gateway and the executor go and come back, sessions stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.paths import RECORDS_DIRECTORY
from sharedkernel.protocol import Limits
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, clean_gateway
from tests.gateway.devices import until


@pytest.fixture(scope="module")
def whole_own_stack() -> Iterator[Stack]:
    """Run a stack whose services may be killed."""
    culling = "c.SessionKernels.cull_interval = 1"
    with Stack(users=["ada", "grace"], capacity="2GiB", executor_arguments=["--spares", "0"], config=culling) as stack:
        yield stack


@pytest.fixture
def own_stack(whole_own_stack: Stack) -> Iterator[Stack]:
    """Return it, looked after."""
    yield from clean_gateway(whole_own_stack)


async def begin(client: Client, session_id: str, code: str) -> tuple[str, str]:
    """Start a session, run *code* in it and leave; return the kernel id and what was printed."""
    kernel = await client.start(KERNEL_CLIENT_KEY="place", KERNEL_NOTEBOOK="a.ipynb", KERNEL_WORKING_DIR="/usr")
    async with client.attach(kernel, session_id) as channels:
        return kernel, (await channels.run(code))["text"].strip()


@pytest.mark.heavy
async def test_sessions_survive_the_gateway(own_stack: Stack) -> None:
    """Killed and started again: same kernel id, same process, same variable, same place.

    Before the gateway knows the executor's sessions, or just when it meets it, nobody is given another one. A cell runs
    on, and its session is not taken for idle; what is printed after the new gateway came waits for the user.
    """
    grace = own_stack.client("grace")
    go_on = own_stack.directory / "go-on"
    code = f"import time\nprint('on')\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.05)\nprint('ended')"
    kernel, pid = await begin(grace, "me", "import os; x = 41; print(os.getpid())")
    path = f"/api/kernels/{kernel}"
    async with grace.attach(kernel, "me") as channels:
        await channels.send("execute_request", {"code": code, "silent": False})
        await channels.until("stream", text="on\n")
        own_stack.gateway.kill()
    own_stack.gateway.start()
    answer = None
    while answer is None or answer.status != 201:  # 503: it has not met the executor yet
        with contextlib.suppress(OSError):  # it does not listen yet
            asked = {"name": "shared-gpu", "env": {"KERNEL_CLIENT_KEY": "place"}}
            answer = await grace.request("POST", "/api/kernels", asked)
    assert answer.body["id"] == kernel
    assert [model["id"] for model in (await grace.request("GET", "/api/kernels")).body] == [kernel]
    assert (await grace.request("GET", path)).body["execution_state"] == "busy"
    go_on.touch()
    while (await grace.request("GET", path)).body["execution_state"] == "busy":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    async with grace.attach(kernel, "me") as channels:
        await channels.until("stream", text="ended\n")
        assert (await channels.run("print(os.getpid(), x + 1)"))["text"].strip() == f"{pid} 42"
        await channels.send("execute_request", {"code": "print('on')\nwhile True: pass", "silent": False})
        await channels.until("stream", text="on\n")
        assert (await grace.request("POST", f"{path}/interrupt")).status == 204
        await channels.until("execute_reply", status="error")
        assert (await grace.request("POST", f"{path}/restart")).status == 200
        assert (await channels.run("import os; os.getcwd()"))["text"] == "'/usr'"


@pytest.mark.heavy
async def test_what_ran_without_a_cell_when_the_gateway_came_ends(own_stack: Stack) -> None:
    """A thread computes, whose end nobody reports: the kernel is not busy for ever."""
    grace = own_stack.client("grace")
    go_on = own_stack.directory / "end"
    compute = f"while not os.path.exists({str(go_on)!r}): torch.ones(1000).sum()"
    kernel, _ = await begin(grace, "me", f"import os, threading, torch\ndef compute():\n    {compute}\nprint(1)")

    async def is_computing() -> bool:
        status = (await grace.request("GET", "/sharedkernel/api/status")).body
        return any(session["state"] == "running" for session in status["sessions"])

    async def is_state(state: str) -> bool:
        with contextlib.suppress(OSError):  # the gateway does not listen yet
            model = await grace.request("GET", f"/api/kernels/{kernel}")
            return model.status == 200 and model.body["execution_state"] == state
        return False

    async with grace.attach(kernel, "me") as channels:
        await channels.run("thread = threading.Thread(target=compute); thread.start()")
    await until(is_computing)
    own_stack.gateway.kill()
    own_stack.gateway.start()
    await until(lambda: is_state("busy"))
    go_on.touch()
    await until(lambda: is_state("idle"))


@pytest.mark.heavy
async def test_a_gateway_without_descriptors_follows_a_restarted_session_later(own_stack: Stack) -> None:
    """It can open no sockets to the new process at first; the notebook is there again once it can."""
    grace = own_stack.client("grace")

    kernel = await grace.start()
    async with grace.attach(kernel, "me") as channels:
        await channels.run("x = 41")
        pid = int((await channels.run("import os; print(os.getpid())"))["text"])
        assert own_stack.gateway.process is not None
        gateway = psutil.Process(own_stack.gateway.process.pid)
        limits = gateway.rlimit(resource.RLIMIT_NOFILE)
        # So low that what it closes makes no room.
        gateway.rlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while not await has_another_process(own_stack, kernel, pid):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)  # so that the gateway hears of it, and cannot connect
        finally:
            gateway.rlimit(resource.RLIMIT_NOFILE, limits)
    async with asyncio.timeout(60), grace.attach(kernel, "me") as channels:
        assert (await channels.run("print('x' in globals())"))["text"] == "False\n"


@contextlib.asynccontextmanager
async def executor_of(stack: Stack) -> AsyncIterator[ExecutorClient]:
    """Speak to a stack's executor past its gateway."""
    client = ExecutorClient(stack.runtime_directory)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def has_another_process(stack: Stack, kernel: str, pid: int) -> bool:
    """Whether a session runs in another process than *pid*, as its executor says."""
    async with executor_of(stack) as executor:
        return any(record.session == kernel and record.pid != pid for record in await executor.sessions())


@pytest.mark.heavy
async def test_outputs_that_a_gateway_took_with_it_come_again(own_stack: Stack) -> None:
    """It ended between reading a cell's outputs and passing on the first of them to a client that was new to it."""
    grace = own_stack.client("grace")
    kernel, _ = await begin(grace, "me", "x = 41")

    async def replace_gateway() -> None:
        own_stack.gateway.kill()
        own_stack.restart_gateway()
        while (await grace.request("GET", f"/api/kernels/{kernel}")).status == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await replace_gateway()
    async with grace.attach(kernel, "new") as channels:
        await channels.run("print('heard')")
    await replace_gateway()
    channels = grace.attach(kernel, "new")
    channels._request.url += "&seen="
    async with channels:
        messages = await channels.until("execute_reply")
    assert [message["content"]["text"] for message in messages if message["type"] == "stream"] == ["heard\n"]


@pytest.mark.heavy
async def test_clients_hear_of_a_process_that_was_started_without_news_of_it(own_stack: Stack) -> None:
    """As when the executor ends between starting it and saying so: nothing that they asked before will be answered."""
    grace = own_stack.client("grace")
    gateway = own_stack.gateway.process
    assert gateway is not None

    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        assert (await channels.run("x = 41"))["status"] == "ok"
        gateway.send_signal(signal.SIGSTOP)
        try:
            own_stack.executor.kill()
            own_stack.executor.start()
            own_stack.executor.wait_until_ready()
            async with executor_of(own_stack) as executor:
                await executor.end_session(kernel)
                await executor.start_session(kernel, Limits(user="grace"))
        finally:
            gateway.send_signal(signal.SIGCONT)
        await channels.until("status", execution_state="restarting")
    async with grace.attach(kernel) as channels:
        assert (await channels.run("'x' in globals()"))["text"] == "False"


@pytest.mark.heavy
async def test_a_session_that_ends_before_its_start_is_heard_of_is_started_again(own_stack: Stack) -> None:
    """A gateway that was busy reads both news at once."""
    grace = own_stack.client("grace")
    gateway = own_stack.gateway.process
    assert gateway is not None

    async with executor_of(own_stack) as executor:
        starting = asyncio.create_task(grace.request("POST", "/api/kernels", {"name": "shared-gpu"}))
        records = own_stack.runtime_directory / RECORDS_DIRECTORY
        while not list(records.iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        gateway.send_signal(signal.SIGSTOP)
        try:
            while not (there := await executor.sessions()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # it becomes ready, and the news of that is on the way
            os.kill(there[0].pid, signal.SIGKILL)
            while await executor.sessions():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            gateway.send_signal(signal.SIGCONT)
        answer = await starting
    kernel = answer.body["id"] if answer.status == 201 else await grace.start()  # it was not ready yet
    async with grace.attach(kernel) as channels:
        assert (await channels.run("1 + 1"))["text"] == "2"


@pytest.mark.heavy
async def test_a_session_that_ends_as_it_is_shut_down_is_gone(own_stack: Stack) -> None:
    """It is no error, and no kernel is left that nothing answers for."""
    grace = own_stack.client("grace")
    executor = own_stack.executor.process
    assert executor is not None

    kernel = await grace.start(KERNEL_NOTEBOOK="a.ipynb")
    async with grace.attach(kernel) as channels:
        pid = int((await channels.run("import os; os.getpid()"))["text"])
    executor.send_signal(signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        ending = asyncio.create_task(grace.end(kernel))
        await grace.request("GET", "/healthz")  # the gateway has heard of it by now, and asks the executor
    finally:
        executor.send_signal(signal.SIGCONT)
    await ending
    assert (await grace.request("GET", "/api/kernels")).body == []


@pytest.mark.heavy
@pytest.mark.parametrize("same_process", [True, False])
async def test_what_was_asked_of_a_process_does_not_run_in_the_next(own_stack: Stack, same_process: bool) -> None:
    """A relay hears of the other process, and what it has sent meanwhile is gone; a browser's cell runs in any."""
    grace = own_stack.client("grace")

    kernel = await grace.start()
    async with grace.attach(kernel, same_process=same_process) as channels:
        await channels.run("x = 41")
        assert (await grace.request("POST", f"/api/kernels/{kernel}/restart")).status == 200
        if same_process:
            await channels.send("execute_request", {"code": "y = x", "silent": False})
            await channels.until("status", execution_state="restarting")
        else:
            assert (await channels.run("y = x"))["ename"] == "NameError"
    async with grace.attach(kernel, same_process=same_process) as channels:
        assert (await channels.run("In[1:-1]"))["text"] == ("[]" if same_process else "['y = x']")


@pytest.mark.heavy
async def test_a_session_that_ended_meanwhile_is_explained_and_started_again(own_stack: Stack) -> None:
    """The kernel id stays; the user reads that the variables are gone."""
    grace = own_stack.client("grace")

    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        pid = (await channels.run("import os; x = 1; print(os.getpid())"))["text"].strip()
        own_stack.executor.kill()
        await channels.send("execute_request", {"code": "os._exit(1)", "silent": False})
        while (await grace.request("GET", "/sharedkernel/api/status")).status != 503:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        own_stack.executor.start()
        told = (await channels.until("status", execution_state="restarting"))[-1]
        assert "session" in told["content"]["message"]
        while (await grace.request("GET", f"/api/kernels/{kernel}")).body.get("reason"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (await channels.run("import os; print(os.getpid(), 'x' in dir())"))["text"].strip() != f"{pid} True"
