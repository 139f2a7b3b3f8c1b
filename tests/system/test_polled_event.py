"""A wait for an event or a descriptor, whichever comes first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharedkernel.system.polled_event import DelayedEvent, PolledEvent


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_it_is_set_until_it_is_cleared() -> None:
    """By another thread, for all who wait and come to wait."""
    event = PolledEvent(lambda: None, lambda: None)
    assert not event.wait(0)
    threading.Thread(target=event.set).start()
    assert event.wait()
    assert event.wait(0)
    event.set()
    event.clear()
    assert not event.wait(0)


def test_a_descriptor_is_read_by_who_waits(pipe: tuple[int, int]) -> None:
    """What it says may be all that is waited for, or nothing."""
    reader, writer = pipe
    seen: list[bytes] = []

    def read() -> None:
        seen.append(os.read(reader, 1))
        if seen[-1] == b"!":
            event.set()

    event = PolledEvent(lambda: reader, read)
    os.write(writer, b"??!?")
    assert event.wait()
    assert seen == [b"?", b"?", b"!"]
    assert event.wait()
    assert len(seen) == 3


def test_an_interrupt_ends_the_wait_and_leaves_it_usable() -> None:
    """In the main thread, where signals are handled."""
    event = PolledEvent(lambda: None, lambda: None)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        event.wait()
    event.set()
    assert event.wait()


def test_what_else_has_come_may_be_all_that_is_waited_for(pipe: tuple[int, int]) -> None:
    """Then who waits ends its own wait, and nothing of that is left for the next one."""
    reader, writer = pipe

    def read() -> None:
        os.read(reader, 1)
        event.end_wait()

    event = PolledEvent(lambda: reader, read)
    os.write(writer, b"!")
    assert event.wait()
    event.clear()
    assert not event.wait(0)


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
