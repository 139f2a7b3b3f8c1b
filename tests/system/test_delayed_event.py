"""An event that comes some time after it was set."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharedkernel.system.delayed_event import DelayedEvent


def test_a_delayed_event_comes_later_and_not_if_it_is_cleared_before() -> None:
    """To set it again meanwhile changes nothing; after a clear it takes its time anew."""
    late, soon = DelayedEvent(3600), DelayedEvent(0.001)
    late.set()
    assert late.is_set()
    assert not late.wait(0)
    late.clear()
    assert not late.is_set()
    soon.set()
    soon.set()
    assert soon.wait()
    assert soon.wait(0)
    soon.clear()
    assert not soon.wait(0.01)
    soon.set()
    assert soon.wait(60)


def is_polling(thread: int) -> bool:
    """Return whether a thread of this process waits in the kernel's `poll`."""
    return "poll" in Path(f"/proc/self/task/{thread}/wchan").read_text()


@pytest.mark.parametrize("timeout", [None, 3600.0, 2.0])
def test_a_delayed_event_comes_whether_or_not_a_wait_would_end_soon_by_itself(timeout: float | None) -> None:
    """Only a wait that is soon over, at its timeout, needs no timer; and none is lost between two waits."""
    event = DelayedEvent(0.001, latest=60)
    started: list[int] = []
    with ThreadPoolExecutor(initializer=lambda: started.append(threading.get_native_id())) as threads:
        waiting = threads.submit(event.wait, timeout)
        deadline = time.monotonic() + 60
        while not (started and is_polling(started[0])):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        event.set()
        assert waiting.result(60)
        event.clear()
        event.set()
        assert threads.submit(event.wait, timeout).result(60)
        event.clear()
        assert not threads.submit(event.wait, 0.01).result(60)


def test_a_forked_child_leaves_the_timer_of_a_delayed_event_alone() -> None:
    """Parent and child have the same one; and only in the parent does anybody wait."""
    event = DelayedEvent(0.2)
    event.set()
    child = os.fork()
    if not child:
        event.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert event.wait(60)
