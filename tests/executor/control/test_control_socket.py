"""What the executor does with peers that break the protocol, and with a command line it cannot use."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable, ProtocolError
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.paths import EXECUTOR_SOCKET
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess
from tests.status.documents import to_json


def say(process: ExecutorProcess, data: bytes) -> list[object]:
    """Send raw bytes and return the answers until the executor hangs up."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE)
        peer.connect(str(process.runtime_directory / EXECUTOR_SOCKET))
        peer.sendall(data)
        decoder = protocol.Decoder(protocol.ToGateway)
        answers: list[object] = []
        while received := peer.recv(65536):
            answers += decoder.feed(received)
        return answers


HELLO = protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role="command"))
STRANGER = protocol.SessionHello(
    version=protocol.PROTOCOL_VERSION, process="x", connection={}, memory=protocol.Memory(), data_bytes=0
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (HELLO + b"\x00\x00\x00\x04junk", "not a control message"),
        (HELLO + struct.pack(">I", 1 << 30), "longer than"),
        (protocol.encode(protocol.Hello(version=99, role="command")), "install the same version"),
        (protocol.encode(STRANGER), "not a session of this executor"),
        (HELLO + protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role="gateway")), "greeted twice"),
    ],
    ids=["malformed", "oversized", "other-version", "stranger", "greets as a gateway after all"],
)
async def test_who_breaks_the_protocol_is_told_and_hung_up_on(
    process: ExecutorProcess, data: bytes, expected: str
) -> None:
    """One sentence, then the connection is closed; a session beside it goes on."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        *_, failed = await asyncio.to_thread(say, process, data)
        assert isinstance(failed, protocol.Failed)
        assert expected in failed.message
        assert (await notebook.run("import torch; int(torch.ones(2).sum())")).text == "2"


async def test_without_a_greeting_nothing_is_done(process: ExecutorProcess) -> None:
    """A request that comes before the greeting closes the connection."""
    request = protocol.encode(protocol.SetPolicy(request=1, policy="fifo"))

    async with Executor(process) as executor:
        assert await asyncio.to_thread(say, process, request) == []
        assert to_json(await executor.client.status())["device"]["policy"] == "fair"


async def test_a_missing_executor_is_said_with_what_to_do(tmp_path: Path) -> None:
    """The client names the socket and the command that would help."""
    with pytest.raises(ExecutorUnavailable, match="start one with `sharedkernel executor --runtime-dir"):
        await ExecutorClient(tmp_path).connect()


def test_a_message_too_long_to_send_is_refused_where_it_is_made() -> None:
    """Nothing is sent of a message that the other end would not take."""
    with pytest.raises(ProtocolError, match="too long"):
        protocol.encode(protocol.Notice(text="x" * protocol.MAX_MESSAGE_BYTES))


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--capacity", "8Gx"], 2, "unknown unit"),
        (["--capacity", "900TiB"], 2, "more than this machine's"),
        (["--policy", "magic"], 2, "unknown policy 'magic'; choose one of fair, fifo"),
        (["--device", "tpu:0"], 2, "there is no device 'tpu:0'"),
        (["--lane-sharing", "none"], 2, "none"),
        (["--spares", "-1"], 2, "at least 0"),
        (["--no-such-option", "1"], 2, "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(options: list[str], status: int, expected: str, tmp_path: Path) -> None:
    """Exit code and sentence, no traceback."""
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(tmp_path / "run"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


async def test_one_executor_a_runtime_directory(process: ExecutorProcess) -> None:
    """A second executor on the same directory says who is there, and disturbs nothing."""
    async with Executor(process) as executor:
        command = [
            sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(process.runtime_directory),
        ]  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"another executor (process {process.process.pid}) serves" in done.stderr
        assert to_json(await executor.client.status())["device"]["kind"] == "host"
        assert "no GPU was found" not in process.log(), "a device that was named needs no explanation"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("run", "is open to other users; run `chmod 700"), ("long" * 20, "too long a path for sockets")],
)
def test_a_directory_that_cannot_be_used_is_refused_at_once(tmp_path: Path, name: str, expected: str) -> None:
    """Sockets are not put where other users could reach them; how long a path may be is not learned by a session."""
    directory = tmp_path / name
    directory.mkdir()
    directory.chmod(0o755)
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert expected in done.stderr


async def test_who_awaits_a_change_hears_of_it(process: ExecutorProcess) -> None:
    """Each of a session's states is news, to everybody who asked before."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        changes = [asyncio.create_task(executor.client.wait_for_change()) for _ in range(2)]
        await asyncio.sleep(0)  # they are sent
        await executor.client.status()  # answered after both were heard
        cell = asyncio.create_task(notebook.run("1 + 1"))
        await asyncio.gather(*changes)
        await cell
