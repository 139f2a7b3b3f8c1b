"""What was missed and what is heard by itself come to one story, whatever overtakes what."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import DELIM

from sharedkernel.gateway.channels.replay import ChannelMessage, ReplayFilter, in_order, is_answered, not_to_come
from sharedkernel.session.channels.message_log import Missed


def published(number: int) -> ChannelMessage:
    return "iopub", [b"topic", DELIM, b"signature", json.dumps({"msg_id": f"here_1_{number}"}).encode()]


@given(st.lists(st.integers(0, 30), min_size=5, max_size=5).map(sorted))
def test_each_message_is_told_once_and_in_order(places: list[int]) -> None:
    """An answer may overtake what was published before it, and what is heard by itself may begin anywhere."""
    first, subscribed, heard, answered, last = places
    said = [published(number) for number in range(last)]
    missed = said[first:answered]
    told = in_order(missed, said[subscribed:heard])
    repeats = ReplayFilter(missed)
    told += [message for message in said[heard:] if not repeats.is_repeated(message[1])]
    assert told == said[first:]


@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).map(sorted), st.data())
def test_so_it_is_where_hearing_stopped_meanwhile(places: list[int], data: st.DataObject) -> None:
    """However much was published between what was heard and what the session still has."""
    subscribed, stopped, answered, last = places
    said = [published(number) for number in range(last)]
    first = data.draw(st.integers(subscribed, answered))
    held = said[subscribed:stopped]
    missed = not_to_come(said[first:answered], held)
    told = in_order(missed, held)
    repeats = ReplayFilter(missed)
    told += [message for message in said[stopped:] if not repeats.is_repeated(message[1])]
    assert told == said[subscribed:]


@pytest.mark.parametrize(("arrived", "answers", "is_given"), [([0, 1], True, True), ([0, 0, 1], False, False)])
async def test_who_sends_gets_as_long_again_for_its_answer(
    arrived: list[int], *, answers: bool, is_given: bool
) -> None:
    """A gateway that was stopped finds the time over when the first of what came meanwhile is read."""
    asking: asyncio.Future[Missed] = asyncio.get_running_loop().create_future()
    left = list(arrived)

    def num_held() -> int:
        number = left.pop(0)
        if answers and not left:  # the answer is read next
            asyncio.get_running_loop().call_soon(asking.set_result, Missed([], is_cut=False))
        return number

    assert await is_answered(asking, num_held, 0.001) is is_given
