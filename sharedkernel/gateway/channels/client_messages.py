"""Messages as clients send them over a websocket: checked, and refused with an answer. Pure."""

from __future__ import annotations

from typing import Any

from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.wire import from_websocket, read_object

#: channels on which clients send
CLIENT_CHANNELS = ("shell", "control", "stdin")

#: a channel's name, a message's type and its content
Answer = tuple[str, str, dict[str, Any]]


def parse_frame(frame: str | bytes, subprotocol: str | None) -> tuple[str, dict[str, Any], list[bytes]]:
    """Return the channel and the header of a frame, and its parts unless it has the framing of old clients.

    Jupyter's own code can safely take such a frame apart.

    Parameters
    ----------
    frame
        As the websocket received it.
    subprotocol
        The websocket's.

    Raises
    ------
    ProtocolError
        When it cannot.
    """
    header: Any
    parts: list[bytes] = []
    if subprotocol == WEBSOCKET_PROTOCOL:
        if isinstance(frame, str):
            raise ProtocolError("a text frame, where this protocol has binary ones.")
        channel, parts = from_websocket(frame)
        header = read_object(parts[0])
    else:
        if isinstance(frame, bytes):
            count = int.from_bytes(frame[:4], "big")
            if not 0 < count < len(frame) // 4:
                raise ProtocolError("a binary frame that holds no message.")
            start = int.from_bytes(frame[4:8], "big")
            end = int.from_bytes(frame[8:12], "big") if count > 1 else len(frame)
            message = read_object(frame[start:end])
        else:
            message = read_object(frame.encode())
        channel, header = message.get("channel", "shell"), message.get("header")
    if channel not in CLIENT_CHANNELS:
        raise ProtocolError(f"a message for the channel {channel!r}; clients send on {', '.join(CLIENT_CHANNELS)}.")
    if not (isinstance(header, dict) and isinstance(header.get("msg_id"), str)):
        raise ProtocolError("a message without an id.")
    return channel, header, parts


def refusal_answers(channel: str, message_type: str, sentence: str) -> list[Answer]:
    """Return the messages that refuse a request as the session would, so that its client does not wait for ever.

    Parameters
    ----------
    channel
        On which the request came.
    message_type
        The request's.
    sentence
        Why it is refused.

    Returns
    -------
    answers
        None for a message that is no request.
    """
    if not message_type.endswith("_request"):
        return []
    error = {"ename": "MessageRefused", "evalue": sentence, "traceback": [f"MessageRefused: {sentence}"]}
    reply = message_type.removesuffix("request") + "reply"
    answers: list[Answer] = [("iopub", "error", error)] if message_type == "execute_request" else []
    return [
        *answers,
        (channel, reply, {"status": "error", **error}),
        ("iopub", "status", {"execution_state": "idle"}),
    ]


def without_buffers(message: dict[str, Any]) -> dict[str, Any]:
    """Return *message* without its binary buffers, and without the places that they have in its data."""
    data = message["content"].get("data")
    if isinstance(data, dict) and "buffer_paths" in data:
        message = {**message, "content": {**message["content"], "data": {**data, "buffer_paths": []}}}
    return {**message, "buffers": []}
