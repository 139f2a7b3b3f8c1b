"""The line under a waiting cell of a real session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.session.page import Word
from tests.session.harness import PATIENCE, SessionUnderTest


@pytest.fixture(scope="module")
def shared_session() -> Iterator[SessionUnderTest]:
    with SessionUnderTest() as session:
        yield session


def withhold(wanted: protocol.DeviceWanted) -> None:
    """Grant nothing."""


@pytest.fixture
def session(shared_session: SessionUnderTest) -> SessionUnderTest:
    """Return a session that is granted the device only when the test says so."""
    shared_session.on_wanted = withhold
    return shared_session


def next_display(session: SessionUnderTest, having: str, seen: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the first display message from now on with *having* in its text; empty: with no text.

    All up to it are added to *seen*.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        message = session.client.get_iopub_msg(timeout=deadline - time.monotonic())
        if message["msg_type"] in ("display_data", "update_display_data"):
            if seen is not None:
                seen.append(message)
            text = message["content"]["data"]["text/plain"]
            if having in text and bool(having) == bool(text):
                return message


def display_id(message: dict[str, Any]) -> str:
    return str(message["content"]["transient"]["display_id"])


def wait_once(
    session: SessionUnderTest,
    since: int,
    holder: str,
    *,
    is_preempted: bool = False,
    seen: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Let a cell that wants the device wait behind *holder*, then run; return what it showed first, then, and last.

    All displays are added to *seen*: the first may say less, if the cell waits before it hears for whom.
    """
    session.wait_for(protocol.DeviceWanted, since)
    session.say(protocol.Waiting(reason="lane", position=2, holder=holder, expected_seconds=1000.0))
    shown = [next_display(session, holder, seen)]
    session.say(protocol.Waiting(reason="lane", position=1, holder=holder, expected_seconds=500.0))
    shown.append(next_display(session, "place 1"))
    session.page.words[Word.PREEMPT] = is_preempted  # until the session has given the device back

    def let_go_on(_wanted: protocol.DeviceWanted) -> None:
        """Grant it to a loop that is so slow that it gives the device back by itself, or within an iteration."""
        released = [message for message in session.heard[since:] if isinstance(message, protocol.GrantReleased)]
        if not is_preempted or all(message.at != "boundary" for message in released):
            session.page.words[Word.PREEMPT] = is_preempted
            session.say(protocol.Granted())

    session.on_wanted = let_go_on
    session.say(protocol.Granted())
    shown.append(next_display(session, ""))
    return shown


def mark_of_release(session: SessionUnderTest, since: int) -> int:
    """Return the number of the message by which the cell gave the device back in its middle."""
    released = session.wait_for(protocol.GrantReleased, since, lambda message: message.at == "boundary")
    return next(number for number, message in enumerate(session.heard) if message is released)


def test_a_cell_that_waits_for_the_executor_itself_says_so(session: SessionUnderTest) -> None:
    """Also in place of what was told of the queue; when it is back, that is told anew."""
    since = session.mark
    request = session.client.execute("torch.ones(3).sum()")
    session.wait_for(protocol.DeviceWanted, since)
    session.say(protocol.Waiting(reason="lane", position=2, holder="mary", expected_seconds=1000.0))
    next_display(session, "mary")
    since, session.is_there = session.mark, False
    session.hang_up()
    session.wait_for(protocol.SessionHello, since)
    next_display(session, "the executor, which shares the device, is away")
    since, session.is_there = session.mark, True
    session.hang_up()
    session.wait_for(protocol.SessionHello, since)
    session.say(protocol.Waiting(reason="lane", position=1, holder="john", expected_seconds=500.0))
    next_display(session, "john")
    session.say(protocol.Granted())
    assert session.reply(request)["status"] == "ok"


def test_it_is_shown_updated_in_place_and_gone(session: SessionUnderTest) -> None:
    """One display with reason, place, expected wait and a bar, changed where it stands, empty when the cell runs."""
    since = session.mark
    request = session.client.execute("torch.ones(3)")
    shown = wait_once(session, since, "grace")
    assert "place 2 in the queue. Expected wait: about 17 m more." in shown[0]["content"]["data"]["text/plain"]
    assert "<progress" in shown[0]["content"]["data"]["text/html"]
    assert len({display_id(message) for message in shown}) == 1
    assert not any(shown[-1]["content"]["data"].values())
    assert session.reply(request)["status"] == "ok"


def test_the_bar_moves_with_the_time(session: SessionUnderTest) -> None:
    """Although the executor has nothing new to say."""
    since = session.mark
    request = session.client.execute("torch.ones(3)")
    session.wait_for(protocol.DeviceWanted, since)
    session.say(protocol.Waiting(reason="lane", position=1, holder="grace", expected_seconds=20.0))
    before = next_display(session, "Expected wait")["content"]["data"]
    assert next_display(session, "Expected wait")["content"]["data"] != before
    session.say(protocol.Granted())
    assert session.reply(request)["status"] == "ok"


def test_all_waits_of_a_cell_have_one_display_and_each_cell_its_own(session: SessionUnderTest) -> None:
    """A training that waits for each turn does not fill its notebook with what is left of notices."""
    loop = "import sharedkernel\nfor _ in sharedkernel.iterations(range(100)): torch.ones(3)"
    ids = []
    for _ in range(2):
        session.on_wanted = withhold
        since = session.mark
        request = session.client.execute(loop)
        ids.append({display_id(message) for message in wait_once(session, since, "grace", is_preempted=True)})
        since = mark_of_release(session, since)
        ids.append({display_id(message) for message in wait_once(session, since, "hedy")})
        assert session.reply(request)["status"] == "ok"
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0] != ids[2]


def test_a_cell_that_clears_its_output_shows_its_next_wait_anew(session: SessionUnderTest) -> None:
    """The display is gone with the output."""
    since = session.mark
    request = session.client.execute(
        "import sharedkernel; from IPython.display import clear_output\n"
        "for _ in sharedkernel.iterations(range(100)): torch.ones(3); clear_output()"
    )
    before = wait_once(session, since, "grace", is_preempted=True)
    seen: list[dict[str, Any]] = []
    after = wait_once(session, mark_of_release(session, since), "hedy", seen=seen)
    assert session.reply(request)["status"] == "ok"
    assert display_id(after[0]) != display_id(before[0])
    first = next(message for message in seen if display_id(message) == display_id(after[0]))
    assert first["msg_type"] == "display_data"
