"""What of the status document (DESIGN.md §6) a user may see."""

from __future__ import annotations

from typing import Any


def visible_to(status: dict[str, Any], user: str) -> dict[str, Any]:
    """Return *status* as *user*, who is no admin, may see it: other users' sessions without notebook and kernel."""
    sessions = [
        session if session["user"] == user else {**session, "notebook": None, "kernel_id": None}
        for session in status["sessions"]
    ]
    return {**status, "sessions": sessions}
