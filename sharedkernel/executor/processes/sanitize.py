"""Limit what sessions report about themselves to what the executor can believe.

A session's process is its user's, so all its figures may be made up. None of them may do others harm: a claim is worth
no more than what the session could really take, and no figure is impossible. What it could take is its user's quota;
what it has, the operating system or the driver sees from outside. Service is not among the figures: the executor
measures it by its own clock.

Nor may its texts: they are passed on to others and remembered, so they are one short line each, and a slug is one that
is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Page, Word
from sharedkernel.protocol import Memory

_M = TypeVar("_M", bound=protocol.Message)

#: figures of messages that are bytes, and may be as many as a user's quota
_BYTES = ("live_bytes", "growth")
#: figures that are only not negative, nor without end
_NOT_NEGATIVE = ("iterations", "seconds")
#: figures that are not negative, or not known
_KNOWN_OR_NOT = ("remaining_iterations", "iteration_seconds")
#: texts, and characters of each that count
_TEXTS = {"message": 300, "kept": 300, "source": 100}
#: names of what goes on in a session that count, and characters of each
_MOST_FOUND, _LENGTH = 8, 80
#: why a session may decline to be offloaded; anything else counts as the last
_REASONS = ("busy", "threads", "tasks", "nothing", "disk", "unsafe")
#: more bytes than any machine has; what is added to them still fits into the system's own numbers
MOST_BYTES = 1 << 50
#: device-seconds that an iteration takes at least; those of grants shorter than the clock can tell, or in flight, are
#: none too many
_SHORTEST_ITERATION, _UNSEEN_ITERATIONS = 1e-6, 10_000


def believe(message: _M, *, quota: int, before: Memory, seen: Callable[[], int]) -> _M:
    """Return *message* of a session with figures that can be true.

    Parameters
    ----------
    message
        As it came.
    quota
        Bytes that its user may have, at most what the device can give.
    before
        What was believed of its memory so far: what is no more than that is not looked at again.
    seen
        Returns the bytes that its process has at most, as seen from outside. Asked only where that decides, since
        somebody may wait for the device meanwhile.
    """
    changes: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, Memory):
            changes[name] = _believe_memory(value, quota=quota, before=before, seen=seen)
        elif name in _BYTES:
            changes[name] = within(value, quota)
        elif name == "offloaded_bytes":
            changes[name] = within(value, quota if value <= quota else max(quota, seen()))
        elif name == "data_bytes":
            changes[name] = within(value, MOST_BYTES)  # for its own limit only
        elif name in _NOT_NEGATIVE:
            changes[name] = max(type(value)(0), value) if value < math.inf else type(value)(0)
        elif name in _KNOWN_OR_NOT and value is not None:
            changes[name] = value if 0 <= value < math.inf else None
        elif name in _TEXTS and value is not None:
            changes[name] = _one_line(value, _TEXTS[name])
        elif name == "found":
            changes[name] = tuple(_one_line(text, _LENGTH) for text in value[:_MOST_FOUND])
        elif name == "reason":
            changes[name] = value if value in _REASONS else _REASONS[-1]
        elif name == "utilisation" and value is not None:
            changes[name] = min(1.0, max(0.0, value)) if value == value else None  # not for NaN
    return msgspec.structs.replace(message, **changes) if changes else message


def _one_line(text: str, length: int) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:length])


def believe_iterations(page: Page, attained: float) -> int:
    """Return how many iterations a session has done that was served *attained* device-seconds."""
    return within(page.words[Word.ITERATIONS], _UNSEEN_ITERATIONS + int(attained / _SHORTEST_ITERATION))


def _believe_memory(memory: Memory, *, quota: int, before: Memory, seen: Callable[[], int]) -> Memory:
    return Memory(
        # More than the quota only what is really there: the quota may have been lowered since.
        persistent=within(memory.persistent, quota if memory.persistent <= quota else max(quota, seen())),
        ephemeral=None if memory.ephemeral is None else within(memory.ephemeral, quota),
        needed=within(memory.needed, quota),
        is_guess=memory.is_guess,
        framework=within(memory.framework, before.framework if memory.framework <= before.framework else seen()),
    )


def within(value: int, most: int) -> int:
    """Return *value*, but no less than 0 and no more than *most*."""
    return min(max(0, value), most)
