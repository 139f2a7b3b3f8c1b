"""Messages of sessions that are too long for the gateway: replaced by a sentence, or refused before they are read."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES
from tests.gateway.conftest import Stack

MIB = 1024**2
#: sends its frames past the session's own limit
_SEND = """if True:
    import threading
    outputs, sent = get_ipython().kernel.iopub_thread, threading.Event()
    outputs.schedule(lambda: (outputs.socket.send_multipart(%s), sent.set()))
    print(sent.wait(30))
"""


#: has its reply carry this much
_PAGE = "get_ipython().payload_manager.write_payload({'source': 'page', 'text': 'x' * %d})"


@pytest.mark.heavy
async def test_a_sentence_takes_the_place_of_an_output_that_is_too_long(stack: Stack) -> None:
    """Below its cell, or as its reply; the next output comes as ever."""
    grace = stack.client("grace")
    async with grace.attach(await grace.start()) as channels:
        shown = await channels.run(f"display({{'text/plain': 'x' * {MAX_OUTPUT_BYTES}}}, raw=True)")
        assert shown["status"] == "ok"
        assert "of output are not shown: the gateway passes on 96.0 MiB at a time" in shown["text"]
        paged = await channels.run(_PAGE % MAX_OUTPUT_BYTES)
        assert (paged["status"], paged["ename"]) == ("error", "OutputTooLong")
        assert "Show less, or write it to a file." in paged["evalue"]
        assert (await channels.run("1 + 1"))["text"] == "2"


def reset_peak_bytes(process: psutil.Process) -> int:
    """Measure the peak of *process* from now on; return what it has now."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return peak_bytes(process)


def peak_bytes(process: psutil.Process) -> int:
    """Return the most memory that *process* has had since this was reset."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.heavy
async def test_a_session_cannot_fill_the_gateways_memory(stack: Stack) -> None:
    """A message of many frames is passed on to nobody, and a frame that is too long is not even read."""
    assert stack.gateway.process is not None
    gateway = psutil.Process(stack.gateway.process.pid)
    grace, mary = stack.client("grace"), stack.client("mary")
    async with grace.attach(await grace.start()) as channels, mary.attach(await mary.start()) as other:
        await channels.run("1")
        cell = {"code": _SEND % "[b'x', *[bytes(40 << 20)] * 3]", "silent": False}
        await channels.send("execute_request", cell)
        said = (await channels.until("stream", name="stderr"))[-1]["content"]["text"]
        assert said == "An output is not shown: the gateway passes on 96.0 MiB at a time.\n"
        before = reset_peak_bytes(gateway)
        sending = await channels.send("execute_request", {"code": _SEND % "[b'x', bytes(300 << 20)]", "silent": False})
        await channels.until("execute_reply", sending)
        for _ in range(50):
            assert (await other.run("6 * 7"))["text"] == "42"
        assert peak_bytes(gateway) - before < 30 * MIB
