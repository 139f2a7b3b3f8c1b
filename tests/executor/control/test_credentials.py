"""Who may speak to the executor's processes: known by what the operating system says of a peer, not by what it says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.paths import EXECUTOR_SOCKET, WARM_PARENT_SOCKET
from tests.executor.devices.support import make_hello
from tests.executor.harness import Executor, ExecutorProcess

#: run by another process: sends argv[2] to the socket argv[1] and prints what is answered until it is hung up on
_STRANGER = """if True:
    import socket, sys
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if sys.argv[3:] else socket.SOCK_STREAM)
    peer.settimeout(60)
    peer.connect(sys.argv[1])
    peer.sendall(bytes.fromhex(sys.argv[2]))
    while data := peer.recv(65536):
        sys.stdout.buffer.write(data)
"""


async def test_nobody_else_speaks_for_a_session(process: ExecutorProcess) -> None:
    """A process that knows a session's names, even its own child, is refused; the session goes on."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        name = Path(notebook.record.connection["ip"]).name.removesuffix("-ipc")
        path = str(process.runtime_directory / EXECUTOR_SOCKET)
        command = [sys.executable, "-c", _STRANGER, path, protocol.encode(make_hello(name)).hex()]
        told = (await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)).stdout
        assert b"not a session of this executor" in told
        child = await notebook.run(f"import subprocess; subprocess.run({command!r}, capture_output=True).stdout")
        assert "not a session of this executor" in child.text
        assert (await notebook.run("import torch; int(torch.ones(2).sum())")).text == "2"
        assert (await executor.session(notebook))["state"] == "idle"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("name", [EXECUTOR_SOCKET, WARM_PARENT_SOCKET])
async def test_another_user_s_process_is_hung_up_on(process: ExecutorProcess, name: str) -> None:
    """Even one that can reach the sockets: it gets no answer, and nobody notices."""
    say: protocol.Message = protocol.Hello(version=protocol.PROTOCOL_VERSION, role="command")
    if name == WARM_PARENT_SOCKET:
        say = protocol.Quit()
    path = str(process.runtime_directory / name)
    kind = [] if name == EXECUTOR_SOCKET else ["packets"]
    # opens the connection as another user, without a directory in the way
    as_another = (
        f"import os, socket, sys; os.chdir({str(process.runtime_directory)!r}); os.setgid(65534); os.setuid(65534)\n"
    )

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        os.chmod(process.runtime_directory, 0o711)
        os.chmod(process.directory, 0o711)
        os.chmod(path, 0o666)
        try:
            command = [sys.executable, "-c", as_another + _STRANGER, path, protocol.encode(say).hex(), *kind]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
        finally:
            os.chmod(path, 0o600)
            os.chmod(process.runtime_directory, 0o700)
        assert done.stdout == b"", done.stderr
        assert done.returncode == 0 or b"ConnectionResetError" in done.stderr or b"BrokenPipe" in done.stderr
        await executor.replace()
        assert (await notebook.run("6 * 7")).text == "42"
