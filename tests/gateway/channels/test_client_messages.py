"""Clients' frames taken apart, and requests refused: without a websocket."""

from __future__ import annotations

import json
from typing import Any

from sharedkernel.gateway.channels.client_messages import parse_frame, refusal_answers

HEADER = {"msg_id": "1", "msg_type": "execute_request"}


def frame(**message: Any) -> str:
    return json.dumps({"channel": "shell", "header": HEADER, **message})


def test_a_frame_names_its_channel_and_header() -> None:
    """The channel is the shell's where the client names none."""
    assert parse_frame(frame(channel="control"), None) == ("control", HEADER, [])
    assert parse_frame(json.dumps({"header": HEADER}), None) == ("shell", HEADER, [])


def test_a_refused_cell_ends_as_one_that_fails() -> None:
    """With an error, a reply and the end of being busy, in this order; a message that is no request gets no answer."""
    answers = refusal_answers("shell", "execute_request", "Too long.")
    assert [(channel, message_type) for channel, message_type, _ in answers] == [
        ("iopub", "error"),
        ("shell", "execute_reply"),
        ("iopub", "status"),
    ]
    assert answers[1][2]["status"] == "error"
    assert answers[1][2]["evalue"] == "Too long."
    assert [kind for _, kind, _ in refusal_answers("control", "debug_request", "No.")] == ["debug_reply", "status"]
    assert refusal_answers("shell", "comm_msg", "No.") == []
