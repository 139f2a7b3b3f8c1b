"""Several devices behind one gateway: two real executors on the host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.errors import ConfigError
from sharedkernel.executor.client import ExecutorClient
from sharedkernel.gateway.executors import parse_devices
from sharedkernel.paths import EXECUTOR_SOCKET, WARM_PARENT_SOCKET, device_directory, only_executor_directory
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, end_all, run, wait_for
from tests.gateway.test_command import in_process

DEVICES = ["host", "host:1"]
STATUS = "/sharedkernel/api/status"
QUOTAS = {"users": {"linus": {"sessions": 2, "memory": "50%"}}}
#: keeps this many MiB
KEEP = "import torch; kept = torch.ones({} << 18); print(kept.numel())"


@pytest.fixture(scope="module")
def two() -> Iterator[Stack]:
    """Run two executors of a GiB each, which may be killed."""
    with Stack(
        users=["ada", "grace", "linus"],
        executors=DEVICES,
        capacity="1GiB",
        quotas=QUOTAS,
    ) as stack:
        yield stack


@pytest.fixture
def devices(two: Stack) -> Iterator[Stack]:
    """Return the stack; sessions that a test leaves are ended, and a test that fails shows the gateway's log."""
    seen = len(two.gateway_log())
    yield two
    sys.stdout.write(two.gateway_log()[seen:])
    for executor in two.executors.values():
        if not executor.running:
            executor.start()
    two.gateway.wait_until_ready()
    run(end_all(two.client("ada")))


async def status_of(stack: Stack) -> dict[str, Any]:
    answer = await stack.client("ada").request("GET", STATUS)
    assert answer.status == 200, answer
    return dict(answer.body)


async def devices_of(stack: Stack, *kernels: str) -> list[str]:
    """Return where these sessions are."""
    where = {session["id"]: session["device"] for session in (await status_of(stack))["sessions"]}
    return [where[kernel] for kernel in kernels]


async def until(is_so: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    while not await is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def start_on_each(stack: Stack, client: Client) -> dict[str, str]:
    """Start a session on each device; return their ids by device."""
    kernels = [await client.start(KERNEL_NOTEBOOK="a.ipynb"), await client.start(KERNEL_NOTEBOOK="b.ipynb")]
    return dict(zip(await devices_of(stack, *kernels), kernels, strict=True))


async def execute(client: Client, kernel: str, code: str) -> str:
    async with client.attach(kernel) as channels:
        reply = await channels.run(code)
    assert reply["status"] == "ok", reply
    return str(reply["text"]).strip()


async def keep(stack: Stack, client: Client, kernel: str, mebibytes: int) -> None:
    """Let a session keep so much memory; returns once its executor knows of it, which may be after its client does."""
    await execute(client, kernel, KEEP.format(mebibytes))

    async def is_known() -> bool:
        sessions = (await status_of(stack))["sessions"]
        return any(entry["id"] == kernel and entry["persistent_bytes"] >= mebibytes << 20 for entry in sessions)

    await until(is_known)


def test_sessions_go_where_there_is_least_to_do(devices: Stack) -> None:
    """One each, then where one has gone; sessions being started count, so that five at once are spread."""

    async def scenario() -> None:
        grace = devices.client("grace")
        kernels = await start_on_each(devices, grace)
        assert sorted(kernels) == DEVICES
        for device in DEVICES:
            await grace.end(kernels[device])
            kernels[device] = await grace.start()
            assert await devices_of(devices, kernels[device]) == [device]
        more = await asyncio.gather(*(grace.start() for _ in range(4)))
        assert sorted(await devices_of(devices, *more)) == ["host", "host", "host:1", "host:1"]

    run(scenario())


def test_a_notebook_is_placed_by_the_memory_it_had(devices: Stack) -> None:
    """A device that lacks it is passed over, for this notebook only."""

    async def scenario() -> None:
        grace = devices.client("grace")
        big = await grace.start(KERNEL_NOTEBOOK="big.ipynb")
        await keep(devices, grace, big, 400)
        await grace.end(big)
        full = await grace.start(KERNEL_NOTEBOOK="full.ipynb")
        await keep(devices, grace, full, 700)
        others = [await grace.start(), await grace.start()]
        where, *elsewhere = await devices_of(devices, full, *others)
        assert where not in elsewhere
        assert await devices_of(devices, await grace.start(KERNEL_NOTEBOOK="big.ipynb")) == elsewhere[:1]
        assert await devices_of(devices, await grace.start(KERNEL_NOTEBOOK="new.ipynb")) == [where]

    run(scenario())


def test_all_that_can_be_done_to_a_session_reaches_its_executor(devices: Stack) -> None:
    """Restart, interrupt, offload, the end: on either device."""

    async def scenario() -> None:
        grace = devices.client("grace")
        for kernel in (await start_on_each(devices, grace)).values():
            path = f"/api/kernels/{kernel}"
            before = await execute(grace, kernel, "import os; print(os.getpid())")
            assert (await grace.request("POST", f"{path}/restart")).status == 200
            assert await execute(grace, kernel, "import os; print(os.getpid())") != before
            async with grace.attach(kernel) as channels:
                await channels.send("execute_request", {"code": "print('on')\nwhile True: pass", "silent": False})
                await channels.until("stream", text="on\n")
                assert (await grace.request("POST", f"{path}/interrupt")).status == 204
                await channels.until("execute_reply", status="error")
            await execute(grace, kernel, KEEP.format(8))
            offload = f"/sharedkernel/api/sessions/{kernel}/offload"
            while (answer := await grace.request("POST", offload)).status == 409:  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # the cell's end is not known yet
            assert answer.status == 204
            sessions = {session["id"]: session for session in (await status_of(devices))["sessions"]}
            assert sessions[kernel]["offloaded_bytes"] > 7 << 20
            assert await execute(grace, kernel, "print(int(kept.sum()))") == str(8 << 18)
            await grace.end(kernel)
        assert (await status_of(devices))["sessions"] == []

    run(scenario())


def test_status_is_one_document(devices: Stack) -> None:
    """The fixed fields sum up, the new ones tell apart, and others' notebooks stay hidden; watchers get the same."""

    async def scenario() -> None:
        grace = devices.client("grace")
        kernels = await start_on_each(devices, grace)
        for kernel in kernels.values():
            await keep(devices, grace, kernel, 8)
        whole = await status_of(devices)
        assert whole["device"]["capacity_bytes"] == 2 << 30
        assert whole["device"]["name"] == "host + host:1"
        assert [(device["name"], device["kind"], device["available"]) for device in whole["devices"]] == [
            ("host", "host", True),
            ("host:1", "host", True),
        ]
        assert re.match(r"host:1 \(", whole["devices"][1]["description"])
        assert whole["device"]["used_bytes"] == sum(device["used_bytes"] for device in whole["devices"]) >= 16 << 20
        user = next(user for user in whole["users"] if user["name"] == "grace")
        assert [entry["device"] for entry in user["devices"]] == DEVICES
        assert user["persistent_bytes"] >= 16 << 20
        assert user["quota_bytes"] == 2 << 30  # each device has a quota of its own
        seen = (await devices.client("linus").request("GET", STATUS)).body
        assert {session["device"]: session["notebook"] for session in seen["sessions"]} == dict.fromkeys(DEVICES)

    run(scenario())


def test_the_number_of_sessions_is_limited_over_all_devices(devices: Stack) -> None:
    """Two allowed: one on each device, and no third anywhere, at once or later."""

    async def scenario() -> None:
        linus = devices.client("linus")
        answers = await asyncio.gather(*(linus.request("POST", "/api/kernels", {}) for _ in range(4)))
        assert sorted(answer.status for answer in answers) == [201, 201, 429, 429]
        kernels = [answer.body["id"] for answer in answers if answer.status == 201]
        assert sorted(await devices_of(devices, *kernels)) == DEVICES
        assert (await linus.request("POST", "/api/kernels", {})).status == 429

    run(scenario())


def test_a_memory_quota_holds_on_each_device(devices: Stack) -> None:
    """Half of the device is half of each; what is kept on one leaves the other's quota as it was."""

    async def scenario() -> None:
        linus = devices.client("linus")
        for kernel in (await start_on_each(devices, linus)).values():
            await execute(linus, kernel, KEEP.format(300))
            async with linus.attach(kernel) as channels:
                reply = await channels.run("more = torch.ones(400 << 18)")
            assert reply["status"] == "error"
            assert "quota" in reply["text"]
        user = next(user for user in (await status_of(devices))["users"] if user["name"] == "linus")
        assert [entry["quota_bytes"] for entry in user["devices"]] == [512 << 20] * 2
        assert user["quota_bytes"] == 1 << 30

    run(scenario())


def test_who_has_a_shelf_gets_sessions_where_it_is(devices: Stack) -> None:
    """Though there is more to do: elsewhere it could not be had."""

    async def scenario() -> None:
        grace = devices.client("grace")
        kernels = await start_on_each(devices, grace)
        await execute(
            grace, kernels["host:1"], "import torch; from sharedkernel import shelf; shelf['x'] = torch.ones(3)"
        )
        for _ in range(2):
            later = await grace.start()
            assert await devices_of(devices, later) == ["host:1"]
            assert (
                await execute(grace, later, "from sharedkernel import shelf; print(shelf['x'].sum())") == "tensor(3.)"
            )
        await execute(grace, later, "del shelf['x']")
        assert await devices_of(devices, await grace.start()) == ["host"]

    run(scenario())


def test_a_new_gateway_adopts_the_sessions_of_all_devices(devices: Stack) -> None:
    """Same ids, same processes, same devices; one's client finds its own."""
    grace = devices.client("grace")
    pids: dict[str, str] = {}

    async def before() -> dict[str, str]:
        kernels = await start_on_each(devices, grace)
        own = await grace.start(KERNEL_CLIENT_KEY="place")
        for kernel in [*kernels.values(), own]:
            pids[kernel] = await execute(grace, kernel, "import os; x = 41; print(os.getpid())")
        return {**kernels, "own": own}

    kernels = asyncio.run(before())
    devices.gateway.kill()
    devices.restart_gateway()

    async def after() -> None:
        assert await grace.start(KERNEL_CLIENT_KEY="place") == kernels.pop("own")
        assert {model["id"] for model in (await grace.request("GET", "/api/kernels")).body} == set(pids)
        assert await devices_of(devices, *kernels.values()) == list(kernels)
        for kernel, pid in pids.items():
            assert await execute(grace, kernel, "print(os.getpid(), x + 1)") == f"{pid} 42"

    run(after())


def test_an_executor_that_is_away_concerns_its_own_sessions_only(devices: Stack) -> None:
    """They cannot be ended or restarted, though their cells run on; everything else works, and it is said."""
    grace = devices.client("grace")
    executor = devices.executors["host:1"]

    async def scenario() -> None:
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
        assert await devices_of(devices, *new) == ["host", "host"]
        assert (await grace.request("GET", f"/api/kernels/{'0' * 8}-0000-0000-0000-{'0' * 12}")).status == 404
        executor.start()
        await until(lambda: is_available(devices))
        assert await devices_of(devices, lost) == ["host:1"]
        assert await execute(grace, lost, "print(os.getpid(), x + 1)") == f"{pid} 42"

    run(scenario())


def test_an_executor_that_hangs_after_its_greeting_keeps_nobody_waiting(devices: Stack) -> None:
    """Sessions are started on the other one; which sessions it has, it may say later."""
    grace = devices.client("grace")
    executor = devices.executors["host:1"]
    path = device_directory(devices.runtime_directory, "host:1") / EXECUTOR_SOCKET
    device = protocol.Device(name="host:1", kind="host", capacity_bytes=1 << 30, reserve_bytes=0)
    welcome = protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=device, pid=os.getpid())

    async def scenario() -> None:
        asked, writers = asyncio.Event(), []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.read(65536)
            writer.write(protocol.encode(welcome))
            while await reader.read(65536):
                asked.set()

        executor.kill()
        await until(lambda: is_away(devices))
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(greet, path)
        try:
            await asked.wait()
            kernels = await asyncio.gather(grace.start(KERNEL_CLIENT_KEY="place"), grace.start())
            assert await devices_of(devices, *kernels) == ["host", "host"]
        finally:
            server.close()
            for writer in writers:
                writer.close()
                await writer.wait_closed()
            path.unlink(missing_ok=True)

    run(scenario())


async def is_away(stack: Stack) -> bool:
    """Whether the gateway knows that the second device's executor is not there."""
    return not (await status_of(stack))["devices"][1]["available"]


async def is_available(stack: Stack) -> bool:
    """Whether both are there."""
    return not await is_away(stack)


def test_a_gateway_serves_before_all_executors_are_there(devices: Stack) -> None:
    """New sessions go to the one that is; what may be on the other is not called unknown until it is back."""
    grace = devices.client("grace")
    kernels = asyncio.run(start_on_each(devices, grace))
    devices.executors["host:1"].kill()
    devices.gateway.kill()
    devices.restart_gateway()

    async def scenario() -> None:
        assert await devices_of(devices, await grace.start()) == ["host"]
        answer = await grace.request("GET", f"/api/kernels/{kernels['host:1']}")
        assert (answer.status, answer.body["reason"]) == (503, "executor_unavailable")
        assert "the executor of host:1" in answer.body["message"]
        devices.executors["host:1"].start()
        path = f"/api/kernels/{kernels['host:1']}"
        while (await grace.request("GET", path)).status == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (await grace.request("GET", path)).status == 200

    run(scenario())


def test_an_executor_that_does_not_answer_keeps_nobody_waiting(devices: Stack) -> None:
    """It is stopped, not gone: status says so, and sessions start on the other."""
    process = devices.executors["host:1"].process
    assert process is not None

    async def scenario() -> None:
        grace = devices.client("grace")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            kernels = [await grace.start() for _ in range(3)]
            status = await status_of(devices)
            assert "does not answer" in status["devices"][1]["message"]
            assert await devices_of(devices, *kernels) == ["host"] * 3
        finally:
            os.kill(process.pid, signal.SIGCONT)
        await until(lambda: is_available(devices))

    run(scenario())


def test_a_session_is_started_when_executors_that_all_hung_go_on(devices: Stack) -> None:
    """As on a machine that is busy for some seconds: who asks waits, and is not told that there is none."""

    async def scenario() -> None:
        grace = devices.client("grace")
        with stopped(devices, "host"), stopped(devices, "host:1"):
            starting = asyncio.create_task(grace.start())
            while (answer := await grace.request("GET", STATUS)).status == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert "none of the executors" in answer.body["message"]
            assert not starting.done()
        assert await execute(grace, await starting, "1 + 1") == "2"

    run(scenario())


def test_who_has_a_shelf_waits_for_an_executor_that_hangs(devices: Stack) -> None:
    """A session elsewhere would be without it for good; others are placed elsewhere meanwhile."""

    async def scenario() -> None:
        grace, linus = devices.client("grace"), devices.client("linus")
        kernels = await start_on_each(devices, grace)
        await execute(
            grace, kernels["host:1"], "import torch; from sharedkernel import shelf; shelf['x'] = torch.ones(3)"
        )
        assert await devices_of(devices, await grace.start()) == ["host:1"]
        with stopped(devices, "host:1"):
            starting = asyncio.create_task(grace.start())
            await until(lambda: is_away(devices))
            assert await devices_of(devices, await linus.start()) == ["host"]
            assert not starting.done()
        assert await devices_of(devices, await starting) == ["host:1"]
        await execute(grace, kernels["host:1"], "del shelf['x']")

    run(scenario())


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


def test_a_start_that_an_executor_did_not_live_to_answer_is_made_on_another(devices: Stack) -> None:
    """And what it has started all the same is ended when it is back: it would be nobody's."""
    executor = devices.executors["host:1"]

    async def scenario() -> None:
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

    run(scenario())


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
    forks = [process for process in psutil.process_iter() if str(directory / WARM_PARENT_SOCKET) in words_of(process)]
    (spare,) = [fork for fork in forks if fork.ppid() in [parent.pid for parent in forks]]
    return spare


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def has_session_on(stack: Stack, device: str) -> bool:
    return device in [session["device"] for session in (await status_of(stack))["sessions"]]


def test_the_rule_may_be_changed_while_the_gateway_serves_and_the_devices_may_not(devices: Stack) -> None:
    """A reload says which is which; a rule that there is not changes nothing."""
    old = devices.config_path.read_text()
    try:
        assert "was read again" in devices.reload(f"{old}\nc.SharedKernelGateway.placement = 'horus'\n")
        assert asyncio.run(status_of(devices))["placement"] == "horus"
        news = devices.reload(f"{old}\nc.SharedKernelGateway.placement = 'chance'\n")
        assert "placement is 'chance'; write one of 'least-loaded'" in news
        assert asyncio.run(status_of(devices))["placement"] == "horus"
        seen = len(devices.gateway_log())
        devices.reload(f"{old}\nc.SharedKernelGateway.executors.append('host:2')\n")
        wait_for(lambda: "restart the gateway" in devices.gateway_log()[seen:])
        assert len(asyncio.run(status_of(devices))["devices"]) == 2
    finally:
        devices.reload(old)


def test_the_only_executor_is_found_whichever_device_it_serves() -> None:
    """No gateway needs to be told of a single device, and status is as it always was."""
    with Stack(users=["ada"], device="host:1", capacity="1GiB", executor_arguments=["--spares", "0"]) as stack:

        async def scenario() -> None:
            ada = stack.client("ada")
            assert await execute(ada, await ada.start(), "1 + 1") == "2"

        run(scenario())
        status = stack.status()
        assert status["device"]["name"].startswith("host:1 (")
        assert "devices" not in status
        assert "device" not in status["sessions"][0]


def test_where_executors_are_follows_from_their_names(tmp_path: Path) -> None:
    """The first device's is at home in the runtime directory; the others have rooms in it."""
    for device, where in (("host", ""), ("cuda", ""), ("cuda:0", ""), ("cuda:1", "cuda-1"), ("host:12", "host-12")):
        assert device_directory(tmp_path, device) == tmp_path / where
    assert only_executor_directory(tmp_path) == tmp_path
    for room in ("cuda-1", "cuda-2"):
        (tmp_path / room).mkdir()
    (tmp_path / "cuda-1" / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path / "cuda-1"
    (tmp_path / "cuda-2" / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path
    several = str(ExecutorClient(tmp_path).unavailable())
    assert "cuda-1" in several
    assert "name their devices in c.SharedKernelGateway.executors;" in several
    (tmp_path / "cuda-2" / "executor.sock").unlink()
    (tmp_path / "executor.sock").touch()
    assert only_executor_directory(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("cuda:0", "executors is 'cuda:0'; write a list of devices"),
        (["cuda:0", "gpu1"], "executors names 'gpu1'; write 'cuda:N' or 'host:N'"),
        (["host:01"], "executors names 'host:01'"),
        ([0], "executors names 0;"),
        (["host:1", "host:1"], "executors names 'host:1' twice"),
        (
            ["host", "cuda:0"],
            "'host' and 'cuda:0', whose executors would have the same runtime directory; give the host",
        ),
    ],
)
def test_devices_that_cannot_be_served_are_one_sentence(tmp_path: Path, value: Any, sentence: str) -> None:
    """With the line that names them."""
    path = tmp_path / "config.py"
    path.write_text(f"\nc.SharedKernelGateway.executors = {value!r}\n")
    with (
        pytest.raises(ConfigError, match=re.escape(sentence)) as refused,
        in_process("--config", str(path), directory=tmp_path),
    ):
        pass
    assert str(refused.value).startswith(f"{path}, line 2: ")


def test_a_directory_too_deep_for_a_device_is_refused(tmp_path: Path) -> None:
    """Before its executor is waited for."""
    path = tmp_path / "config.py"
    path.write_text("c.SharedKernelGateway.executors = ['cuda:0', 'cuda:1']")
    deep = tmp_path / ("d" * (80 - len(str(tmp_path)) - len("//run")))
    deep.mkdir()
    with pytest.raises(ConfigError, match="cuda-1 is too long"), in_process("--config", str(path), directory=deep):
        pass


def test_devices_keep_the_order_in_which_they_are_written() -> None:
    """It decides between equals."""
    assert parse_devices(("cuda:1", "host:3", "cuda:0")) == ("cuda:1", "host:3", "cuda:0")
