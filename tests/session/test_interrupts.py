"""An interrupt at any moment: what it meets has its reply, and what comes after works."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from sharedkernel.session.interrupts import Latch
from tests.session.harness import SessionUnderTest


@pytest.fixture(scope="module")
def session() -> Iterator[SessionUnderTest]:
    with SessionUnderTest() as session:
        session.run("import asyncio")
        yield session


@pytest.mark.parametrize(
    ("code", "error"), [("6 * 7", "KeyboardInterrupt"), ("await asyncio.sleep(0)", "CancelledError")]
)
def test_a_cell_that_is_interrupted_at_any_moment_has_its_reply(
    session: SessionUnderTest, code: str, error: str
) -> None:
    """Also before its first line and after its last, where nobody's code runs."""
    rng = random.Random(0)
    began = time.monotonic()
    session.run(code)
    typical = time.monotonic() - began
    for _ in range(150):
        request = session.client.execute(code)
        time.sleep(rng.uniform(0.0, 1.5 * typical))
        session.interrupt()
        reply = session.reply(request)
        failed = reply.get("ename")
        assert failed in (None, error, "KeyboardInterrupt"), reply
        # What is done after a cell may be interrupted, too, and says so without failing it.
        assert reply["errors"] == [failed] or (failed is None and reply["errors"] in ([], ["KeyboardInterrupt"])), reply
    assert session.run(code)["status"] == "ok"


def test_a_latch_ends_a_wait_from_another_thread() -> None:
    """As an event does: also one that comes later, and after it was cleared."""
    latch = Latch()
    assert not latch.wait(0.0)
    threading.Timer(0.05, latch.set).start()
    assert latch.wait(60.0)
    assert latch.wait(0.0)
    latch.clear()
    assert not latch.wait(0.01)
    waiting = [threading.Thread(target=latch.wait, args=(60.0,)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    latch.set()
    for thread in waiting:
        thread.join(30.0)
        assert not thread.is_alive()
