"""One gateway serves a runtime directory, drains, and the next one takes its place, however it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.gateway.lock import GatewayLock
from sharedkernel.system.lock_file import GATEWAY_LOCK, lend_gateway_lock
from tests.command import run_here
from tests.executor.isolation import FIRST_UID, GATEWAY, needs_root, readable_by_all
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, wait_for
from tests.small_disk import fill

#: takes the place that a gateway takes, says what came of it, and stays until its input ends
_TAKE_PLACE = """if True:
    import logging, os, sys
    from pathlib import Path
    from sharedkernel.errors import ConfigError
    from sharedkernel.gateway.lock import GatewayLock
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    try:
        lock = GatewayLock(Path(sys.argv[1]), patience=0.0)
    except ConfigError as error:
        sys.exit(str(error))
    print("here", flush=True)
    if sys.stdin.readline():
        lock.announce_end()
        print("ending", flush=True)
        sys.stdin.readline()
        lock.release()
"""


def gateway_command(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sharedkernel", "gateway", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def start(directory: Path) -> subprocess.Popen[str]:
    return gateway_command("--port", "0", "--runtime-dir", str(directory))


def serves(gateway: subprocess.Popen[str]) -> bool:
    """Wait for the line that says so, or the end of it."""
    assert gateway.stdout is not None
    return gateway.stdout.readline().startswith("Serving on ")


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End them and what they say, whatever happens."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


@pytest.mark.heavy
def test_a_second_gateway_is_refused_in_one_sentence_and_the_first_serves_on(tmp_path: Path) -> None:
    """On another port too; it says whom to stop.

    The next one need not wait to be started until the one before is gone, and nothing of a killed one keeps it out.
    """
    directory = tmp_path / "run"
    lock = directory / GATEWAY_LOCK
    with contextlib.ExitStack() as gateways:
        gateways.enter_context(ended(gateway := start(directory)))
        assert serves(gateway)
        with ended(second := start(directory)):
            _, error = second.communicate(timeout=60)
        assert second.returncode == 1
        content = lock.read_text()
        process, port = content.split()
        assert int(process) == gateway.pid
        assert error.splitlines()[-1] == (
            f"sharedkernel: another gateway (process {process}, port {port}) serves {directory}; stop it "
            "(`--drain` lets its cells end first), or name another --runtime-dir."
        )
        assert gateway.poll() is None
        assert lock.read_text() == content
        for signum in (signal.SIGTERM, signal.SIGKILL):
            gateway.send_signal(signum)
            gateways.enter_context(ended(gateway := start(directory)))
            assert serves(gateway)
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
    assert not lock.exists()


def test_a_full_disk_keeps_no_gateway_from_serving(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It writes its process id over that of one that was killed; without even that file it serves all the same."""
    path = small_disk / GATEWAY_LOCK
    path.write_text("4194303 65535\n")
    filling = fill(small_disk)
    lock = GatewayLock(small_disk, patience=0.0)
    lock.publish_port(80)
    assert path.read_text() == f"{os.getpid()} 80\n"
    lock.release()
    assert not caplog.records
    filling.unlink()
    fill(small_disk)
    lock = GatewayLock(small_disk, patience=0.0)
    assert "could not be written (No space left on device)" in caplog.text
    assert not path.read_bytes()
    lock.release()


def take_place(directory: Path, uid: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        readable_by_all([sys.executable, "-c", _TAKE_PLACE, str(directory), str(uid)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def heard(process: subprocess.Popen[str]) -> str:
    """Return the next line that *process* writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_one_that_is_ending_is_waited_for_without_any_patience(tmp_path: Path) -> None:
    """However long it takes; the third is refused by the second, which took the place of the first."""
    own = os.getuid()
    with ended(first := take_place(tmp_path, own)):
        assert heard(first) == "here"
        go_on(first)
        assert heard(first) == "ending"
        with ended(second := take_place(tmp_path, own)):
            assert heard(second) == f"waiting for {tmp_path / GATEWAY_LOCK}"
            go_on(first)
            assert heard(second) == "here"
            with ended(third := take_place(tmp_path, own)):
                _, error = third.communicate()
            assert third.returncode == 1
            assert f"another gateway (process {second.pid})" in error


@needs_root
def test_a_gateway_of_another_account_locks_what_root_s_executor_made_for_it() -> None:
    """It may make nothing in root's directory; where there is no such file yet, it serves all the same."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        with ended(alone := take_place(directory, FIRST_UID)):
            assert heard(alone).startswith(f"{directory / GATEWAY_LOCK} cannot be locked")
            assert heard(alone) == "here"
        for _ in range(2):  # by each executor
            lend_gateway_lock(directory, FIRST_UID, FIRST_UID)
        lent = (directory / GATEWAY_LOCK).stat()
        assert (lent.st_uid, lent.st_mode & 0o777) == (FIRST_UID, 0o600)
        with ended(first := take_place(directory, FIRST_UID)):
            assert heard(first) == "here"
            with ended(second := take_place(directory, FIRST_UID)):
                _, error = second.communicate()
            assert f"another gateway (process {first.pid})" in error
            go_on(first)
            go_on(first)
            assert first.wait(60) == 0
        with ended(third := take_place(directory, FIRST_UID)):
            assert heard(third) == "here"


@pytest.mark.heavy
@needs_root
def test_what_a_gateway_cannot_write_is_said_once_at_its_start() -> None:
    """In a sentence each, though it serves; one that can write everything says nothing (`test_gateway_account.py`)."""
    account = pwd.getpwnam(GATEWAY)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/nonexistent",
                   "JUPYTERHUB_API_TOKEN": "0" * 32, "JUPYTERHUB_SERVICE_NAME": "gpu"}  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        options = ["--identity", "jupyterhub", "--port", "0", "--runtime-dir", name]
        command = readable_by_all([*become, sys.executable, "-m", "sharedkernel", "gateway", *options])
        gateway = subprocess.Popen(
            command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with ended(gateway):
            assert serves(gateway)
            gateway.send_signal(signal.SIGTERM)
            _, said = gateway.communicate(timeout=60)
        lines = [line.partition("] ")[2] for line in said.splitlines() if line.startswith(("[W", "[E", "[C", "Trace"))]
        assert lines == [
            f"{directory / GATEWAY_LOCK} cannot be locked: this gateway cannot be drained, and another one could start",
            "/nonexistent/.local/state/sharedkernel cannot be made (Permission denied); name another with --state-dir. "
            f"Until then, what should outlive a reboot is in {directory}.",
            f"{directory}/groups.json cannot be written (Permission denied); that is tried again at each change. After "
            "a restart, quotas by group hold for nobody before their next request.",
            f"the audit log {directory}/audit.jsonl cannot be written (Permission denied); name another file "
            "with --audit-file.",
            "received signal 15, stopping",
        ]


def command(stack: Stack, *arguments: str) -> subprocess.Popen[str]:
    """Start ``sharedkernel gateway --drain`` for the stack's gateway."""
    places = ("--runtime-dir", str(stack.runtime_directory), "--port", str(stack.port))
    return gateway_command(*places, "--drain", *arguments)


async def lines(process: subprocess.Popen[str], number: int) -> list[str]:
    """Return the next lines that a command prints."""
    assert process.stdout is not None
    return [(await asyncio.to_thread(process.stdout.readline)).rstrip() for _ in range(number)]


async def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return a command's exit code, and the rest of what it printed."""
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, out.strip(), err.strip()


async def readiness(client: Client) -> tuple[int, str]:
    answer = await client.request("GET", "/readyz")
    return answer.status, answer.body.strip()


async def draining(client: Client) -> object:
    """Return what the status document says of the drain."""
    return (await client.request("GET", "/sharedkernel/api/status")).body.get("draining")


@pytest.mark.heavy
async def test_a_drained_gateway_takes_no_sessions_lets_cells_end_and_stops(stack: Stack) -> None:
    """The command says what it waits for, and returns when the gateway is gone; sessions outlive it.

    Ctrl-C says that the gateway goes on draining; `--cancel` has it serve on, and who waits for its end is told.
    """
    grace = stack.client("grace")
    status, _, error = await end_of(command(stack, "--cancel"))
    assert (status, error) == (1, f"sharedkernel: the gateway at port {stack.port} is not draining.")
    done = run_here("gateway", "--cancel")  # which would start a gateway
    assert (done.returncode, "--cancel goes with --drain" in done.stderr) == (1, True)
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        await channels.send("execute_request", {"code": "x = input()", "silent": False, "allow_stdin": True})
        await channels.until("input_request")
        process = command(stack)
        first, second = await lines(process, 2)
        assert first.startswith(f"Draining the gateway at port {stack.port}: it starts no more sessions")
        assert re.fullmatch(r"Waiting for 1 cell, until \d\d:\d\d:\d\d at the latest\.", second)
        assert await readiness(grace) == (503, "draining")
        said = await draining(grace)
        assert isinstance(said, dict)
        assert said["cells"] == 1
        assert said["until"] > 0
        answer = await grace.request("POST", "/api/kernels", {})
        assert (answer.status, answer.body["reason"]) == (503, "draining")
        process.send_signal(signal.SIGINT)
        status, out, _ = await end_of(process)
        assert status == 130
        assert out == f"The gateway at port {stack.port} goes on draining; --drain --cancel has it serve on."
        assert await readiness(grace) == (503, "draining")
        waiting = command(stack)
        await lines(waiting, 2)
        assert await end_of(command(stack, "--cancel")) == (
            0,
            f"The gateway at port {stack.port} serves on, and starts sessions again.",
            "",
        )
        status, _, error = await end_of(waiting)
        assert status == 1
        assert error.endswith(f"the drain was cancelled; the gateway at port {stack.port} serves on.")
        assert await readiness(grace) == (200, "ok")
        assert await draining(grace) is None
        await grace.start()
        process = command(stack)
        await lines(process, 2)
        assert process.poll() is None
        await channels.send("input_reply", {"value": "kept"}, "stdin")
        await channels.until("execute_reply", status="ok")
        status, out, _ = await end_of(process)
        assert (status, out.splitlines()[-1]) == (0, "The gateway has stopped; sessions run on.")
    assert stack.gateway.process is not None
    wait_for(lambda: not stack.gateway.running)
    assert stack.gateway.process.returncode == 0
    status, _, error = await end_of(command(stack))
    assert status == 1
    assert f"no gateway of yours serves port {stack.port}" in error
    audit = (stack.runtime_directory / "audit.jsonl").read_text().splitlines()
    drains = [action for action in (json.loads(line)["action"] for line in audit) if "drain" in action]
    assert drains[-3:] == ["drain gateway", "cancel drain", "drain gateway"]
    stack.restart_gateway()
    while (await grace.request("GET", f"/api/kernels/{kernel}")).status != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    async with grace.attach(kernel) as channels:
        assert (await channels.run("x"))["text"] == "'kept'"
