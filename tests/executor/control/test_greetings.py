"""What adopted sessions say while others have not greeted yet."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sharedkernel.executor.control.router import SessionAdoption
from sharedkernel.executor.processes.connections import ControlConnection
from tests.executor.devices.support import make_hello, make_process
from tests.executor.harness import Executor, ExecutorProcess

#: holds the interpreter, so that the process can greet nobody, until somebody writes to a pipe
_DEAF = "import ctypes; ctypes.PyDLL(None).open({pipe!r}, 0)"


def make_peer(name: str) -> ControlConnection:
    """Return the connection of an adopted session."""
    peer = ControlConnection(Mock(), Mock())
    peer.session = make_process(name)
    peer.transport = peer.session.transport = Mock(is_closing=Mock(return_value=False))
    return peer


async def test_what_follows_a_greeting_is_heard_after_it() -> None:
    """Holders are taken over first; then all others; then everybody is heard, and from then on at once."""
    heard: list[tuple[str, Any]] = []

    def hear(process: Any, message: Any) -> None:
        heard.append((process.process, message))

    adoption = SessionAdoption(hear, hear)
    idle, holder = make_peer("idle"), make_peer("holder")
    for peer in (idle, holder):
        adoption.expect(peer.session)
    rest, hold = make_hello(), make_hello(holding=True)
    adoption.greeted(idle, rest)
    assert adoption.defers(idle.session, "opened")
    assert not heard
    adoption.greeted(holder, hold)
    assert heard == [("holder", hold), ("idle", rest), ("idle", "opened")]
    assert not adoption.defers(idle.session, "closed")


async def test_only_whose_greeting_cannot_be_heard_is_hung_up_on() -> None:
    """The others are taken over; who was hung up on meanwhile, or has greeted anew, is not heard as it was before."""
    heard: list[str] = []

    def hear(process: Any, message: Any) -> None:
        heard.append(process.process)
        if process.process == "liar":
            raise ValueError(message)

    adoption = SessionAdoption(hear, hear)
    peers = {name: make_peer(name) for name in ("liar", "gone", "honest")}
    for peer in peers.values():
        adoption.expect(peer.session)
    adoption.greeted(peers["liar"], make_hello(holding=True))
    peers["liar"].transport.close.side_effect = (  # type: ignore[attr-defined]
        lambda: peers["liar"].transport.is_closing.configure_mock(return_value=True)  # type: ignore[attr-defined]
    )
    assert adoption.defers(peers["liar"].session, "opened")
    adoption.greeted(peers["gone"], make_hello())
    peers["gone"].session.transport = None
    adoption.greeted(peers["honest"], make_hello())
    assert heard == ["liar", "honest"]
    peers["liar"].transport.close.assert_called_once()  # type: ignore[attr-defined]


@pytest.mark.heavy
async def test_cells_run_although_another_session_does_not_greet(fifo_process: ExecutorProcess, tmp_path: Path) -> None:
    """One that opens while an executor still waits for another session is no other than it would be later."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async with Executor(fifo_process) as executor:
        deaf, first, second = [await executor.notebook(user) for user in ("ada", "grace", "lin")]
        for notebook in (first, second):
            await notebook.run("import time, torch; torch.ones(1)")
        waits = asyncio.create_task(deaf.run(_DEAF.format(pipe=str(pipe).encode())))
        await executor.until_session(deaf, lambda entry: entry["state"] != "idle", "the cell is open")
        await executor.replace()
        code = "x = torch.ones(2); time.sleep({}); float(x.sum())"
        cells = [first.run(code.format(3)), second.run(code.format(0))]
        assert [outcome.text for outcome in await asyncio.gather(*cells)] == ["2.0", "2.0"]
        assert not waits.done()
        await asyncio.to_thread(pipe.write_text, "")
        assert (await waits).status == "ok"
        assert "Traceback" not in executor.process.log()
