"""What the executor does with peers that break the protocol, and with a command line it cannot use."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError, SharedKernelError
from sharedkernel.paths import EXECUTOR_SOCKET
from sharedkernel.system.nvml import list_gpus
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


GREETING = protocol.Hello(version=protocol.PROTOCOL_VERSION, role="command")
HELLO = protocol.encode(GREETING)


async def test_who_breaks_the_protocol_is_told_and_hung_up_on(process: ExecutorProcess) -> None:
    """One sentence, then the connection is closed; a session beside it goes on."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        for data, expected in (
            (HELLO + b"\x00\x00\x00\x04junk", "not a control message"),
            (HELLO + struct.pack(">I", 1 << 30), "longer than"),
            (protocol.encode(protocol.Hello(version=99, role="command")), "install the same version"),
            (HELLO + protocol.encode(msgspec.structs.replace(GREETING, role="gateway")), "greeted twice"),
        ):
            *_, failed = await asyncio.to_thread(say, process, data)
            assert isinstance(failed, protocol.Failed), expected
            assert expected in failed.message
        without_a_greeting = protocol.encode(protocol.SetPolicy(request=1, policy="fifo"))
        assert await asyncio.to_thread(say, process, without_a_greeting) == []
        assert to_json(await executor.client.status())["device"]["policy"] == "fair"
        assert (await notebook.run("import torch; int(torch.ones(2).sum())")).text == "2"


def test_a_message_too_long_to_send_is_refused_where_it_is_made() -> None:
    """Nothing is sent of a message that the other end would not take."""
    with pytest.raises(ProtocolError, match="too long"):
        protocol.encode(protocol.Notice(text="x" * protocol.MAX_MESSAGE_BYTES))


def execute(directory: Path, *options: str, gpus: str = "") -> subprocess.CompletedProcess[str]:
    """Return what became of an executor that does not start."""
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(directory), *options]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--capacity", "900TiB"], "more than this machine's"),
        (["--device", "tpu:0"], "there is no device 'tpu:0'"),
        (["--spares", "-1"], "at least 0"),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(options: list[str], expected: str, tmp_path: Path) -> None:
    """Exit code and sentence, no traceback."""
    done = execute(tmp_path / "run", *options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_a_device_the_first_gpu_is_served(tmp_path: Path) -> None:
    """Where GPUs are said to be there and the driver is not, it does not serve the processor in their place."""
    try:
        if list_gpus():
            pytest.skip("there is a GPU")
    except SharedKernelError:
        pytest.skip("there is a driver that does not work")
    done = execute(tmp_path / "run", gpus="0")
    assert done.returncode == 2
    assert done.stderr.startswith("sharedkernel: there is no NVIDIA driver here")
    assert "or use --device host" in done.stderr


async def test_one_executor_a_runtime_directory(process: ExecutorProcess) -> None:
    """A second executor on the same directory says who is there, and disturbs nothing."""
    async with Executor(process) as executor:
        done = await asyncio.to_thread(execute, process.runtime_directory)
        assert done.returncode == 1
        assert f"another executor (process {process.process.pid}) serves" in done.stderr
        assert to_json(await executor.client.status())["device"]["kind"] == "host"
        assert "no GPU was found" not in process.log(), "a device that was named needs no explanation"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("run", "is open to other users; run `chmod 700"), ("long" * 20, "too long a path for sockets")],
)
def test_a_directory_that_cannot_be_used_is_refused_at_once(tmp_path: Path, name: str, expected: str) -> None:
    """Sockets are not put where other users could reach them; how long a path may be is not learned by a session.

    That the processor is to be served, since there is no GPU, is said before.
    """
    directory = tmp_path / name
    directory.mkdir()
    directory.chmod(0o755)
    done = execute(directory)
    assert done.returncode == 1
    assert "no GPU was found: serving the processor" in done.stderr
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
