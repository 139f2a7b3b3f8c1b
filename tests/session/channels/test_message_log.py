"""What a session said lately is kept within a limit, and each client gets what it has missed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import DELIM

from sharedkernel.session.channels.message_log import MessageLog, Missed, message_id

LIMIT = 1000

Note = Callable[[list[bytes]], object]


def message(number: int, size: int = 0, to: bytes = b"") -> list[bytes]:
    return [to or b"topic", DELIM, b"signature", json.dumps({"msg_id": str(number)}).encode(), bytes(size)]


@pytest.fixture
def message_log() -> Iterator[MessageLog]:
    box = MessageLog(LIMIT)
    yield box
    box.close()


@pytest.fixture
def note(message_log: MessageLog) -> Note:
    """Return what tells the log that somebody begins (1) or ends (0) to listen."""
    return message_log._noting_listeners(lambda frames: None)


def publish(message_log: MessageLog, *numbers: int) -> None:
    """Publish messages."""
    for number in numbers:
        message_log.keep("iopub", message(number))


def ids(missed: Missed) -> list[str | None]:
    return [message_id(frames) for _, frames in missed.messages]


@given(st.lists(st.integers(0, LIMIT + 100), max_size=60), st.integers(0, 59))
def test_the_newest_messages_are_kept_whole_and_in_order(sizes: list[int], seen: int) -> None:
    """What is given out is what came after the last message seen; where that is gone, it is said."""
    message_log = MessageLog(LIMIT)
    sent = [message(number, size) for number, size in enumerate(sizes)]
    for frames in sent:
        message_log.keep("iopub", frames)
    kept = [frames for _, frames in message_log.since([], b"").messages]
    assert kept == sent[len(sent) - len(kept) :]
    assert sum(len(b"".join(frames)) for frames in kept) <= LIMIT
    if seen < len(sent):
        missed = message_log.since([str(seen), "another"], b"")
        is_there = seen >= len(sent) - len(kept)
        assert [frames for _, frames in missed.messages] == (sent[seen + 1 :] if is_there else kept)
        assert missed.is_cut is not is_there
    message_log.close()


def test_a_buffer_is_kept_as_it_lies_in_memory(message_log: MessageLog) -> None:
    """As sockets send it: an image that was transposed is in Fortran's order."""
    image = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    message_log.keep("iopub", [*message(0), memoryview(image)])
    ((_, frames),) = message_log.since([], b"").messages
    assert frames[-1] == bytes(range(6))


def test_replies_go_to_who_asked(message_log: MessageLog) -> None:
    """To one that comes back all that are kept: the session does not know which of them have arrived."""
    replies = [message(number, to=who) for number, who in enumerate((b"ada", b"grace", b"ada"))]
    for frames in replies:
        message_log.keep("shell", frames)
    publish(message_log, 3, 4)
    missed = message_log.since(["3"], b"ada", resumes=True).messages
    assert missed == [("shell", replies[0]), ("shell", replies[2]), ("iopub", message(4))]


def test_who_may_have_had_a_reply_is_not_told_it_again(message_log: MessageLog, note: Note) -> None:
    """Another relay speaks for the same client, which has what the relay before was sent, and refuses it twice."""
    note([b"\x01"])
    message_log.keep("shell", message(1, to=b"ada"))
    note([b"\x00"])  # the gateway ends, so that nobody hears the next
    message_log.keep("shell", message(2, to=b"ada"))
    note([b"\x01"])
    assert message_log.since([], b"ada").messages == [("shell", message(2, to=b"ada"))]


def test_a_successor_is_told_what_its_client_has_not_heard(message_log: MessageLog, note: Note) -> None:
    """Neither outputs nor replies that the client had from the relay before; all later ones when it comes back."""
    note([b"\x01"])
    message_log.meet(b"ada")

    def say(*numbers: int) -> list[tuple[str, list[bytes]]]:
        said = [("iopub" if number % 2 else "shell", message(number, to=b"ada")) for number in numbers]
        for channel, frames in said:
            message_log.keep(channel, frames)
        return said

    def told(seen: list[str], successor: bytes) -> list[tuple[str, list[bytes]]]:
        return message_log.since(seen, b"ada", resumes=True, successor=successor).messages

    say(0, 1, 2, 3)
    later = say(4, 5)
    assert told(["3"], b"second") == told([], b"second") == later
    assert told(["5"], b"second") == later[:1]  # it knows which replies it has
    assert told([], b"third") == []
    note([b"\x00"])  # the gateway ends
    unheard = say(6, 7)
    note([b"\x01"])
    assert told([], b"fourth") == told([], b"fourth") == unheard
    assert told([], b"third") == unheard


def test_a_reply_is_found_by_its_request(message_log: MessageLog) -> None:
    """It is given to the client that asked, and to no other."""
    reply = [*message(1, to=b"ada")[:4], json.dumps({"msg_id": "asked"}).encode(), b"{}"]
    message_log.keep("shell", reply)
    message_log.keep("shell", message(2, to=b"ada"))
    assert message_log.reply_to("asked", b"ada") == reply
    assert message_log.reply_to("asked", b"grace") is None
    assert message_log.reply_to("1", b"ada") is None


def test_what_one_client_was_told_no_other_is_told_again(message_log: MessageLog, note: Note) -> None:
    """A client that has seen nothing of this session gets what was said while no client was there, and that once."""

    def told(seen: list[str]) -> list[str | None]:
        return ids(message_log.since(seen, b""))

    note([b"\x01"])
    publish(message_log, 1, 2)  # for the client that started the session
    note([b"\x00"])
    publish(message_log, 3)
    note([b"\x01"])  # a gateway that goes before its client comes
    publish(message_log, 4)
    note([b"\x00"])
    note([b"\x01"])
    publish(message_log, 5)
    assert told(["elsewhere_1_7"]) == ["3", "4", "5"]
    publish(message_log, 6, 7)
    assert told(["elsewhere_1_8"]) == []
    assert told(["6"]) == ["7"]


def test_a_client_that_has_seen_nothing_is_told_what_its_gateway_took_with_it(
    message_log: MessageLog, note: Note
) -> None:
    """All since it came or was told first; a client that comes for the first time is told none of it."""

    def told(identity: bytes, *, resumes: bool = True) -> list[str | None]:
        return ids(message_log.since([], identity, resumes=resumes))

    note([b"\x01"])
    publish(message_log, 1)
    message_log.meet(b"ada")
    publish(message_log, 2)
    note([b"\x00"])  # the gateway ends before it passes that on
    publish(message_log, 3)
    note([b"\x01"])
    assert told(b"grace", resumes=False) == ["3"]
    note([b"\x00"])
    note([b"\x01"])
    assert told(b"grace", resumes=False) == []
    assert told(b"grace") == ["3"]
    assert told(b"ada") == ["2", "3"]
    for number in range(100):
        message_log.meet(str(number).encode())
    assert told(b"ada") == []  # who came that long ago is forgotten


def test_who_has_seen_what_is_no_longer_kept_gets_all_that_is(message_log: MessageLog, note: Note) -> None:
    """It is of this session, as its id says, and so has missed everything after it."""
    note([b"\x01"])
    for number in range(3):
        frames = message(0, size=LIMIT // 2)
        frames[3] = json.dumps({"msg_id": f"here_1_{number}"}).encode()
        message_log.keep("iopub", frames)
    missed = message_log.since(["here_1_0"], b"")
    assert ids(missed) == ["here_1_2"]
    assert missed.is_cut


def test_a_forked_child_keeps_nothing(message_log: MessageLog) -> None:
    """What it prints comes by way of its parent, and is kept there."""
    pid = os.fork()
    if pid == 0:
        send = message_log._keeping("iopub", lambda frames: frames)
        os._exit(send([b"x"]) != [b"x"])
    assert os.waitpid(pid, 0)[1] == 0
    assert message_log.since([], b"").messages == []


def test_what_is_no_message_has_no_id() -> None:
    """Frames that anybody's code may have sent are no reason to fail."""
    for frames in ([], [b"x"], [DELIM, b"s", b"{"], [DELIM, b"s", b"[]"], [DELIM, b"s", b'{"msg_id": 1}']):
        assert message_id(frames) is None
