"""What waits for a gateway is bounded and stays in order."""

from __future__ import annotations

from sharedkernel.client.relay.local_responder import Request
from sharedkernel.client.relay.pending import Held


def message(content: bytes, message_type: str = "complete_request") -> Request:
    """Return a message that waits."""
    parts = [b"{}", b"{}", b"{}", content]
    return Request(channel="shell", message_type=message_type, parts=parts, wants_reply=message_type != "comm_msg")


def test_messages_are_taken_in_their_order() -> None:
    """And one that could not be written goes back to the front."""
    held = Held()
    first, second, third = (message(text) for text in (b"1", b"2", b"3"))
    assert [held.add(each) for each in (first, second, third)] == [True] * 3
    taken = next(held.take())
    held.put_back(taken)
    assert list(held.take()) == [first, second, third]
    assert list(held.take()) == []


def test_what_exceeds_a_bound_is_not_kept() -> None:
    """By number and by size; what was there stays, and room that is freed can be used."""
    held = Held(max_messages=2, max_bytes=100)
    assert held.add(message(b"x" * 40))
    assert not held.add(message(b"x" * 80))
    assert held.add(message(b"x" * 40))
    assert not held.add(message(b""))
    assert len(list(held.take())) == 2
    assert held.add(message(b"x" * 80))


def test_cells_are_taken_out_alone() -> None:
    """An interrupt is about them, not about what else waits."""
    held = Held()
    cell, question = message(b"1", "execute_request"), message(b"2")
    comm = message(b"3", "comm_msg")
    for each in (question, cell, comm):
        held.add(each)
    assert held.remove_cells() == [cell]
    assert list(held.take()) == [question, comm]
