"""What a client has missed while it had no gateway, or this gateway did not run: asked of its session, told in order.

A session keeps the newest of what it says (:mod:`sharedkernel.session.outbox`). A client that comes back names the
last messages that it has seen; one that does not gets what nobody has listened to. What comes from the session
meanwhile is held back, so that everything is told once and in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from sharedkernel.errors import ProtocolError
from sharedkernel.session.outbox import Missed, message_id

#: most ids that are looked at
_MAX_SEEN = 64

#: a channel's name and a message's frames
Told = tuple[str, list[bytes]]


def parse_seen(text: str | None) -> list[str] | None:
    """Return the ids in a websocket's address; None if the client says nothing of them."""
    return None if text is None else [part for part in text.split(",") if part][:_MAX_SEEN]


def read_missed(message: dict[str, Any]) -> Missed:
    """Take a session's answer apart.

    Raises
    ------
    ProtocolError
        When it is none.
    """
    try:
        (data,) = message["buffers"] or [b""]
        content, messages, start = message["content"], [], 0
        for channel, sizes in content["messages"]:
            ends = list(accumulate(sizes, initial=start))
            messages.append((str(channel), [bytes(data[begin:end]) for begin, end in pairwise(ends)]))
            start = ends[-1]
        return Missed(messages, bool(content["is_cut"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not an answer about missed messages: {error!r}.") from None


def in_order(missed: Iterable[Told], held: Sequence[Told]) -> list[Told]:
    """Return what was missed and what was heard meanwhile, each message once, oldest first.

    *held* may begin before *missed* (a gateway's own backlog may reach further back) and ends after it.
    """
    missed = list(missed)
    known = {message_id(frames) for _, frames in missed}
    new = [(message_id(frames) not in known, (channel, frames)) for channel, frames in held]
    first_known = next((place for place, (is_new, _) in enumerate(new) if not is_new), 0)
    older = [told for is_new, told in new[:first_known] if is_new]
    newer = [told for is_new, told in new[first_known:] if is_new]
    return older + missed + newer


def not_to_come(missed: Sequence[Told], held: Iterable[Told]) -> list[Told]:
    """Return what of *missed* will not come by itself, where hearing stopped after *held* was heard.

    What is published in between makes a gap if none of *missed* was heard: it comes first then, and *missed* after it.
    """
    heard = {message_id(frames) for _, frames in held}
    overlaps = any(message_id(frames) in heard for channel, frames in missed if channel == "iopub")
    return [(channel, frames) for channel, frames in missed if overlaps or channel != "iopub"]


class Repeats:
    """What was told as missed and may yet come by itself.

    A session answers on one socket and publishes on another: an answer can overtake what was published before it.

    Parameters
    ----------
    missed
        What a client was told.
    """

    def __init__(self, missed: Iterable[Told]) -> None:
        ids = (message_id(frames) for channel, frames in missed if channel == "iopub")
        self._ids = {found for found in ids if found is not None}

    def is_one(self, frames: list[bytes]) -> bool:
        """Whether the message that was heard next, of all that are published, was told already."""
        if not self._ids:
            return False
        if message_id(frames) in self._ids:
            return True
        self._ids.clear()  # they are published in order
        return False
