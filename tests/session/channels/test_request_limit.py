"""What waits for a busy session has a limit."""

from __future__ import annotations

from typing import Any

from jupyter_client.session import DELIM

from sharedkernel.session.channels.backpressure import RequestLimit
from tests.session.harness import SessionUnderTest

MIB = 1 << 20


def message(number: int, size: int) -> list[bytes]:
    """Return a message with an identity and *size* bytes of content."""
    return [b"client", DELIM, b"signature %d" % number, b"{}", b"{}", b"{}", bytes(size)]


def test_what_is_handled_makes_room() -> None:
    """Counted from when it comes until it is handled; the last one fits again then."""
    request_limit = RequestLimit(1000)
    assert request_limit.add(message(1, 400), None, [])
    assert request_limit.add(message(2, 400), None, [])
    assert not request_limit.add(message(3, 400), None, [])
    request_limit.take(message(1, 400))
    request_limit.take([b"stop aborting"])
    assert request_limit.add(message(3, 400), None, [])


def test_a_message_alone_may_be_longer_than_the_limit() -> None:
    """Else it could never be sent. What waits for a subshell goes with it, as nobody handles it any more."""
    request_limit = RequestLimit(1000)
    assert request_limit.add(message(1, 4000), "sub", ["sub"])
    assert not request_limit.add(message(2, 1), None, ["sub"])
    assert request_limit.add(message(2, 400), None, [])


def until_idle(session: SessionUnderTest, request: str) -> list[dict[str, Any]]:
    """Return what is published about *request*, up to its end."""
    found = []
    while not found or found[-1]["content"].get("execution_state") != "idle":
        published = session.client.get_iopub_msg(timeout=60)
        if published["parent_header"].get("msg_id") == request:
            found.append(published)
    return found


def test_a_busy_session_refuses_what_is_too_much_and_goes_on(session: SessionUnderTest) -> None:
    """Each request is answered with an error, other messages with one sentence; an interrupt still comes through."""
    busy = session.client.execute("import threading; print('runs', flush=True); threading.Event().wait()")
    while session.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    waiting = [session.request("comm_msg", {"comm_id": "c", "data": "x" * (40 * MIB)}) for _ in range(3)]
    cell = session.client.execute(f"len({'x' * (40 * MIB)!r})")
    comms = [session.request("comm_msg", {"comm_id": "c", "data": "x" * (40 * MIB)}) for _ in range(2)]
    published = until_idle(session, cell)
    assert [entry["msg_type"] for entry in published] == ["status", "error", "status"]
    assert "128 MiB of messages wait for it already" in published[1]["content"]["evalue"]
    refused = [until_idle(session, comm) for comm in comms]
    assert [entry["msg_type"] for entry in refused[0]] == ["status", "stream", "status"]
    assert [entry["msg_type"] for entry in refused[1]] == ["status", "status"]
    reply = session.client.get_shell_msg(timeout=60)
    assert (reply["parent_header"]["msg_id"], reply["content"]["ename"]) == (cell, "MessageRefused")
    session.interrupt()
    assert session.reply(busy)["ename"] == "KeyboardInterrupt"
    until_idle(session, waiting[-1])
    assert session.run("print('ran')")["text"] == "ran\n"
