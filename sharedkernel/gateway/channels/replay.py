"""Replay of the messages that a client has missed, while it or the gateway was away.

A session keeps its newest messages (:mod:`sharedkernel.session.channels.message_log`). A client that comes back
names the last messages that it has seen, and gets the later ones; a client that comes for the first time gets those
that no client has heard. Messages that arrive meanwhile are held back, so that the client gets each message once and in
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from jupyter_client.session import Session as MessageSession

from sharedkernel.errors import ProtocolError, SessionNotFound
from sharedkernel.jupyter.session_socket import SessionSocket
from sharedkernel.session.channels.message_log import REQUEST, Missed, message_id

#: most message ids that a client may name
_MAX_SEEN = 64

#: a channel's name and a message's frames
ChannelMessage = tuple[str, list[bytes]]


def parse_seen(text: str | None) -> list[str] | None:
    """Return the message ids in a websocket's address; None if the client does not say that it comes back."""
    return None if text is None else [part for part in text.split(",") if part][:_MAX_SEEN]


class MissedRequests:
    """Requests to a session's process for missed messages.

    Parameters
    ----------
    session
        Signs the messages.
    """

    def __init__(self, session: MessageSession) -> None:
        self._session = session
        self._unanswered: set[asyncio.Future[list[bytes]]] = set()

    async def ask(
        self, channel: SessionSocket, seen: Collection[str] | None, client: str, successor: str = ""
    ) -> Missed:
        """Return the messages that a client has missed; waits for a busy session.

        Parameters
        ----------
        channel
            A connection of its own to the session's control socket, closed afterwards.
        seen
            Ids of the last messages that the client has seen; None: it comes for the first time, or does not say.
        client
            Its message session id.
        successor
            Names it alone, if it takes the place of another client of this id.

        Raises
        ------
        SessionNotFound
            When the session's process ends or is replaced meanwhile.
        ProtocolError
            When the session's answer is invalid.
        """
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        channel.on_recv(answer.set_result)
        self._unanswered.add(answer)
        try:
            asked = {"seen": list(seen or ()), "identity": client, "resumes": seen is not None, "successor": successor}
            channel.send_multipart(self._session.serialize(self._session.msg(REQUEST, asked)))
            answered = await answer
            try:
                return _read_missed(self._session.deserialize(self._session.feed_identities(answered)[1]))
            except (ValueError, TypeError, KeyError) as error:
                raise ProtocolError(f"the session's answer is no valid message: {error!r}.") from None
        finally:
            self._unanswered.discard(answer)
            channel.close()

    def cancel(self) -> None:
        """Answer all requests with an error: the process is gone."""
        for answer in self._unanswered:
            if not answer.done():
                answer.set_exception(SessionNotFound("the session's process is another one by now."))


async def is_answered(asking: asyncio.Future[Missed], num_held: Callable[[], int], patience: float) -> bool:
    """Return once a session has answered, or False for one that does not, though it sends other messages.

    A session in the middle of compiled code can neither answer nor send anything else. One that sends something gets as
    long again for its answer: a gateway that was stopped finds its time over before it has read what came meanwhile.

    Parameters
    ----------
    asking
        Done with the answer.
    num_held
        Returns how many messages of the session have arrived.
    patience
        Seconds to wait at a time.
    """
    before, has_sent = num_held(), False
    while not (await asyncio.wait([asking], timeout=patience))[0]:
        if has_sent:
            return False
        has_sent = num_held() > before
    return True


def _read_missed(message: dict[str, Any]) -> Missed:
    (data,) = message["buffers"] or [b""]
    content, messages, start = message["content"], [], 0
    for channel, sizes in content["messages"]:
        ends = list(accumulate(sizes, initial=start))
        messages.append((str(channel), [bytes(data[begin:end]) for begin, end in pairwise(ends)]))
        start = ends[-1]
    return Missed(messages, bool(content["is_cut"]))


def in_order(missed: Iterable[ChannelMessage], held: Sequence[ChannelMessage]) -> list[ChannelMessage]:
    """Return each missed or held message once, oldest first.

    Parameters
    ----------
    missed
        From the session's answer.
    held
        Messages that arrived meanwhile. They may begin before *missed* (the gateway's backlog may reach further back),
        and end after it.
    """
    missed = list(missed)
    known = {message_id(frames) for _, frames in missed}
    new = [(message_id(frames) not in known, (channel, frames)) for channel, frames in held]
    first_known = next((place for place, (is_new, _) in enumerate(new) if not is_new), 0)
    older = [message for is_new, message in new[:first_known] if is_new]
    newer = [message for is_new, message in new[first_known:] if is_new]
    return older + missed + newer


def not_to_come(missed: Sequence[ChannelMessage], held: Iterable[ChannelMessage]) -> list[ChannelMessage]:
    """Return the missed messages that the live stream will not repeat, where reading stopped after *held*.

    If no output of *missed* is among *held*, there is a gap: the live stream has the outputs between, and then those of
    *missed*.

    Parameters
    ----------
    missed
        From the session's answer.
    held
        Messages that were read from the live stream meanwhile.
    """
    heard = {message_id(frames) for _, frames in held}
    overlaps = any(message_id(frames) in heard for channel, frames in missed if channel == "iopub")
    return [(channel, frames) for channel, frames in missed if overlaps or channel != "iopub"]


class ReplayFilter:
    """Recognises outputs of the live stream that were replayed already.

    A session answers on one socket and publishes on another: an answer can overtake earlier outputs.

    Parameters
    ----------
    replayed
        Messages that the client was sent.
    """

    def __init__(self, replayed: Iterable[ChannelMessage]) -> None:
        ids = (message_id(frames) for channel, frames in replayed if channel == "iopub")
        self._ids = {found for found in ids if found is not None}

    def is_repeated(self, frames: list[bytes]) -> bool:
        """Whether the next output of the live stream was replayed already; call it for every output."""
        if not self._ids:
            return False
        if message_id(frames) in self._ids:
            return True
        self._ids.clear()  # outputs come in order, so no later one is repeated
        return False
