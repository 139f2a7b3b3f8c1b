"""What a session publishes of its state."""

from __future__ import annotations

import time
from pathlib import Path

from tests.session.harness import PATIENCE, SessionUnderTest


def states(session: SessionUnderTest, until: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the states that are published, each with its request's id, up to the one named."""
    found: list[tuple[str, str]] = []
    deadline = time.monotonic() + PATIENCE
    while not found or found[-1] != until:
        message = session.client.get_iopub_msg(timeout=deadline - time.monotonic())
        if message["msg_type"] == "status":
            found.append((message["parent_header"].get("msg_id", ""), message["content"]["execution_state"]))
    return found


def test_a_request_beside_a_cell_leaves_it_busy(session: SessionUnderTest, tmp_path: Path) -> None:
    """A client goes by the last state that it was sent; the cell's own end is the last."""
    enough = tmp_path / "enough"
    cell = session.client.execute(
        f"import pathlib, time\nwhile not pathlib.Path({str(enough)!r}).exists(): time.sleep(0.01)"
    )
    states(session, (cell, "busy"))
    for _ in range(3):
        asked = session.control("kernel_info_request", {})["parent_header"]["msg_id"]
        assert states(session, (cell, "busy")) == [(asked, "busy"), (asked, "idle"), (cell, "busy")]
    enough.touch()
    assert states(session, (cell, "idle")) == [(cell, "idle")]
    # Nothing comes after it but what belongs to the next request.
    asked = session.control("kernel_info_request", {})["parent_header"]["msg_id"]
    assert states(session, (asked, "idle")) == [(asked, "busy"), (asked, "idle")]


def test_a_reset_forgets_the_users_modules_only(session: SessionUnderTest) -> None:
    """What was imported before the fork is noted there, and what the session's start imports, when it does."""
    look = "import sys\nprint(len(sys.modules), sorted({'tabnanny', 'wave', 'torch', 'ipykernel'} & {*sys.modules}))"
    before = session.run(look)["text"]
    assert "['ipykernel', 'torch']" in before
    session.run("import tabnanny, wave")
    session.run("%reset -f --aggressive")
    assert session.run(look)["text"] == before
