"""Memory in made-up status documents, whose figures add up as those of an executor do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = ("persistent_bytes", "ephemeral_bytes", "framework_bytes")


def memory_of_users(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return each user's memory by kind: sums over their sessions."""
    users: dict[str, dict[str, int]] = {}
    for session in sessions:
        memory = users.setdefault(session["user"], dict.fromkeys(_KINDS, 0))
        for kind in _KINDS:
            memory[kind] += session.get(kind, 0)
    return users


def in_use(memory: Mapping[str, int]) -> int:
    """Return how much of a user's memory is in use now."""
    return sum(memory[kind] for kind in _KINDS)
