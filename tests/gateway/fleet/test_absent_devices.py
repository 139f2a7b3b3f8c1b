"""Several devices behind one gateway, of which some are away, hang, or are not there yet."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from typing import get_args

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.paths import EXECUTOR_SOCKET, WARM_PARENT_SOCKET, device_directory
from tests.gateway.conftest import Stack, wait_for
from tests.gateway.devices import STATUS, devices_of, execute, start_on_each, status_of, until

pytestmark = pytest.mark.heavy


@contextlib.asynccontextmanager
async def only_greeting(stack: Stack, device: str) -> AsyncIterator[None]:
    """Have something in the place of the executor of *device* that greets the gateway, and then hangs."""
    path = device_directory(stack.runtime_directory, device) / EXECUTOR_SOCKET
    about = protocol.Device(name=device, kind="host", capacity_bytes=1 << 30, reserve_bytes=0)
    requests = [kind.__name__ for kind in get_args(protocol.FromGateway)]
    welcome = protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=about, requests=requests)
    asked, writers = asyncio.Event(), []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(65536)
        writer.write(protocol.encode(welcome))
        while await reader.read(65536):
            asked.set()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(greet, path)
    try:
        await asked.wait()
        yield
    finally:
        server.close()
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        path.unlink(missing_ok=True)


async def test_an_executor_that_is_away_concerns_its_own_sessions_only(devices: Stack) -> None:
    """They cannot be ended or restarted, though their cells run on; everything else works, and it is said.

    One that hangs after its greeting keeps nobody waiting: which sessions it has, it may say later.
    """
    grace = devices.client("grace")
    executor = devices.executors["host:1"]

    kernels = await start_on_each(devices, grace)
    lost, here = kernels["host:1"], kernels["host"]
    pid = await execute(grace, lost, "import os; x = 41; print(os.getpid())")
    executor.kill()
    await until(lambda: is_away(devices))
    for method, path in (("DELETE", f"/api/kernels/{lost}"), ("POST", f"/api/kernels/{lost}/restart")):
        answer = await grace.request(method, path)
        assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
        assert "`sharedkernel executor --device host:1 --runtime-dir" in answer.body["message"]
    assert await execute(grace, lost, "x + 1") == "42"
    status = await status_of(devices)
    assert status["device"]["name"] == "host"
    assert status["device"]["capacity_bytes"] == 1 << 30
    assert [session["id"] for session in status["sessions"]] == [here]
    away = status["devices"][1]
    assert (away["num_sessions"], away["capacity_bytes"], away["used_bytes"]) == (1, 1 << 30, None)
    assert "--device host:1" in away["message"]
    assert (await grace.request("POST", f"/api/kernels/{here}/restart")).status == 200
    new = [await grace.start(), await grace.start()]
    assert (await grace.request("GET", f"/api/kernels/{'0' * 8}-0000-0000-0000-{'0' * 12}")).status == 404
    async with only_greeting(devices, "host:1"):
        new += await asyncio.gather(grace.start(KERNEL_CLIENT_KEY="place"), grace.start())
        assert await devices_of(devices, *new) == ["host"] * 4
    executor.start()
    await until(lambda: is_available(devices))
    assert await devices_of(devices, lost) == ["host:1"]
    assert await execute(grace, lost, "print(os.getpid(), x + 1)") == f"{pid} 42"


async def is_away(stack: Stack) -> bool:
    """Whether the gateway knows that the second device's executor is not there."""
    return not (await status_of(stack))["devices"][1]["available"]


async def is_available(stack: Stack) -> bool:
    """Whether both are there."""
    return not await is_away(stack)


async def test_a_gateway_serves_before_all_executors_are_there(devices: Stack) -> None:
    """New sessions go to the one that is; what may be on the other is not called unknown until it is back.

    Then it has adopted all: same ids, same processes, same devices; one's client finds its own.
    """
    grace, linus = devices.client("grace"), devices.client("linus")
    kernels = await start_on_each(devices, grace)
    own = await grace.start(KERNEL_CLIENT_KEY="place")
    pids = {
        kernel: await execute(grace, kernel, "import os; x = 41; print(os.getpid())")
        for kernel in (*kernels.values(), own)
    }
    devices.executors["host:1"].kill()
    other = await linus.start()
    devices.gateway.kill()
    devices.restart_gateway()
    new = await grace.start()
    assert await devices_of(devices, new) == ["host"]
    # A list without some of her kernels would make a stock client give them up; others' lists are whole.
    path = f"/api/kernels/{kernels['host:1']}"
    for asked, sentence in (("/api/kernels", " yet, which had sessions of yours"), (path, "")):
        answer = await grace.request("GET", asked)
        assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
        assert f"the executor of host:1{sentence}" in answer.body["message"]
    assert [model["id"] for model in (await linus.request("GET", "/api/kernels")).body] == [other]
    devices.executors["host:1"].start()
    while (await grace.request("GET", path)).status == 503:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert (await grace.request("GET", path)).status == 200
    assert {model["id"] for model in (await grace.request("GET", "/api/kernels")).body} == {*pids, new}
    assert await grace.start(KERNEL_CLIENT_KEY="place") == own
    assert await devices_of(devices, *kernels.values()) == list(kernels)
    for kernel, pid in pids.items():
        assert await execute(grace, kernel, "print(os.getpid(), x + 1)") == f"{pid} 42"


async def test_an_executor_that_hangs_is_named_and_holds_up_nobody_else(devices: Stack) -> None:
    """Readiness names its device; whatever concerns the other one, or all, is answered meanwhile.

    Who has a shelf there waits: a session elsewhere would be without it for good.
    """
    ada, grace = devices.client("ada"), devices.client("grace")
    there = (await start_on_each(devices, grace))["host:1"]
    await execute(grace, there, "import torch; from sharedkernel import shelf; shelf['x'] = torch.ones(3)")
    more = await grace.start()
    assert await devices_of(devices, more) == ["host:1"], "though there is more to do"
    assert await execute(grace, more, "from sharedkernel import shelf; print(shelf['x'].sum())") == "tensor(3.)"
    kernel = await ada.start()
    with stopped(devices, "host:1"):
        while (answer := await ada.request("GET", "/readyz")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert answer.status == 503
        assert answer.body == "there, but does not answer; its log may say why: the executor of host:1\n"
        entries = {entry["name"]: entry for entry in (await status_of(devices))["devices"]}
        assert [entries[name]["available"] for name in ("host", "host:1")] == [True, False]
        assert "does not answer" in entries["host:1"]["message"]
        starting = asyncio.create_task(grace.start())
        kernels = [kernel, *await asyncio.gather(ada.start(), ada.start())]
        assert await devices_of(devices, *kernels) == ["host"] * 3
        assert await execute(ada, kernel, "1 + 1") == "2"
        quotas = {"users": {"mary": {"memory": "1MiB"}}}
        requests = (
            ada.request("PUT", "/sharedkernel/api/quotas", quotas),
            ada.request("PUT", "/sharedkernel/api/policy", {"policy": "fifo"}),
            ada.request("GET", "/metrics"),
        )
        assert [answer.status for answer in await asyncio.gather(*requests)] == [200] * 3
        for each in kernels:
            await ada.end(each)
        assert not starting.done()
    await until(lambda: is_available(devices))
    policies = (await ada.request("GET", "/sharedkernel/api/policy")).body["devices"]
    assert policies == {"host": "fifo", "host:1": "fifo"}
    assert await devices_of(devices, await starting) == ["host:1"]
    await execute(grace, there, "del shelf['x']")
    assert await devices_of(devices, await grace.start()) == ["host"]


async def test_a_session_is_started_when_executors_that_all_hung_go_on(devices: Stack) -> None:
    """As on a machine that is busy for some seconds: who asks waits, and is not told that there is none."""
    grace = devices.client("grace")
    with stopped(devices, "host"), stopped(devices, "host:1"):
        starting = asyncio.create_task(grace.start())
        while (answer := await grace.request("GET", STATUS)).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert "none of the executors" in answer.body["message"]
        assert not starting.done()
    assert await execute(grace, await starting, "1 + 1") == "2"


@contextlib.contextmanager
def stopped(stack: Stack, device: str) -> Iterator[None]:
    """Have the executor of *device* hang meanwhile."""
    process = stack.executors[device].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def test_a_start_that_an_executor_did_not_live_to_answer_is_made_on_another(devices: Stack) -> None:
    """And what it has started all the same is ended when it is back: it would be nobody's."""
    executor = devices.executors["host:1"]

    grace = devices.client("grace")
    first = await grace.start()
    spare = await spare_of(devices, "host:1")
    spare.suspend()  # it is made a session, and does not say so
    try:
        start = asyncio.create_task(grace.start())
        await until(lambda: has_session_on(devices, "host:1"))
        assert not start.done()
        executor.kill()
        second = await start
    finally:
        spare.resume()
    assert await devices_of(devices, first, second) == ["host", "host"]
    executor.start()
    await until(lambda: is_available(devices))
    wait_for(lambda: "it was not assigned to its user yet" in executor.log_path.read_text())
    while len((await status_of(devices))["sessions"]) > 2:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert {model["id"] for model in (await grace.request("GET", "/api/kernels")).body} == {first, second}


async def spare_of(stack: Stack, device: str) -> psutil.Process:
    """Return the process that is ready to be the next session of *device*, which has none."""
    directory = device_directory(stack.runtime_directory, device)
    process = stack.executors[device].process
    assert process is not None
    executor = psutil.Process(process.pid)
    # It listens, and the gateway and the spare have connected.
    path = str(directory / EXECUTOR_SOCKET)
    while [socket.laddr for socket in executor.net_connections("unix")].count(path) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await status_of(stack)  # by its answer, it has heard what was said before
    parents = [process for process in psutil.process_iter() if str(directory / WARM_PARENT_SOCKET) in words_of(process)]
    (spare,) = [fork for parent in parents for fork in parent.children()]
    return spare


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def has_session_on(stack: Stack, device: str) -> bool:
    return device in [session["device"] for session in (await status_of(stack))["sessions"]]
