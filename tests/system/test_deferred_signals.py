"""Signals held off: what came meanwhile happens at the end, once, and afterwards everything is as it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from sharedkernel.system.deferred_signals import (
    SignalHoldingLock,
    holdable,
    interruptible_wait,
    interrupts_let_through,
    signals_held,
    signals_held_between_waits,
)

FORCE = signal.SIGURG


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Every test leaves interrupts as they were."""
    force = signal.getsignal(FORCE)
    yield
    signal.signal(FORCE, force)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_the_end_of_a_change() -> None:
    """It is raised then, once, and not in the middle; nested stretches count as one."""
    done = []

    @signals_held()
    def change() -> None:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        change()
    assert done == [1, 2]
    change_without = signals_held()(lambda: done.append(3))
    change_without()
    assert done == [1, 2, 3]


def test_a_wait_lets_interrupts_through() -> None:
    """Also one that came before it, which ends the stretch; one that comes after it waits again."""
    done = []

    def interrupted_before() -> None:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            done.append("noted")
            with interrupts_let_through():
                done.append("waits")

    def interrupted_after() -> None:
        with signals_held():
            with interrupts_let_through():
                done.append("waited")
            signal.raise_signal(signal.SIGINT)
            done.append("noted")

    def interrupted_in_a_stretch_of_the_wait() -> None:
        with signals_held(), interrupts_let_through():
            with signals_held():
                signal.raise_signal(signal.SIGINT)
                done.append("noted")
            done.append("waits")

    for work, lines in (
        (interrupted_before, ["noted"]),
        (interrupted_after, ["waited", "noted"]),
        (interrupted_in_a_stretch_of_the_wait, ["noted"]),
    ):
        done.clear()
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == lines


def test_a_stretch_with_waits_lets_interrupts_through_unless_its_caller_holds_them() -> None:
    """A caller that must not be cut short is not, however its callees wait."""
    done: list[str] = []

    def change() -> None:
        with signals_held_between_waits():
            signal.raise_signal(signal.SIGINT)
            done.append("noted")
            with signals_held_between_waits(), interruptible_wait():
                done.append("waited")
            done.append("changed")

    with pytest.raises(KeyboardInterrupt):
        change()
    assert done == ["noted"]
    done.clear()

    @signals_held()
    def change_as_a_part() -> None:
        change()
        done.append("ended")

    with pytest.raises(KeyboardInterrupt):
        change_as_a_part()
    assert done == ["noted", "waited", "changed", "ended"]
    with pytest.raises(KeyboardInterrupt):
        change()


def test_a_holdable_handler_waits_for_the_end_even_where_interrupts_do_not() -> None:
    """However often it was called, it does its work once."""
    done = []
    signal.signal(FORCE, holdable(lambda: done.append(1)))
    with signals_held():
        for _ in range(3):
            signal.raise_signal(FORCE)
        with interrupts_let_through():
            signal.raise_signal(FORCE)
        assert done == []
    assert done == [1]
    signal.raise_signal(FORCE)
    assert done == [1, 1]


def test_a_handler_that_holds_signals_itself_may_come_at_any_moment() -> None:
    """Interrupts are as they were, although one stretch began in the middle of another's beginning or end."""
    handled = 0

    def handle() -> None:
        nonlocal handled
        with signals_held():
            handled += 1

    before = signal.signal(signal.SIGALRM, holdable(handle))
    signal.setitimer(signal.ITIMER_REAL, 1e-5, 5e-5)
    try:
        while handled < 3000:
            with signals_held():
                pass
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_hold_nothing() -> None:
    """Handlers run in the main thread alone."""
    was: list[object] = []

    def work() -> None:
        with signals_held(), interrupts_let_through():
            was.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert was == [signal.default_int_handler]


def test_a_handler_runs_only_once_the_lock_is_free() -> None:
    """It waits for a lock whose owner waits for that one."""
    lock, others, is_waited_for, got = SignalHoldingLock(), threading.Lock(), threading.Event(), []

    def wait_for_lock() -> None:
        with others:
            is_waited_for.set()
            with lock:
                pass

    signal.signal(FORCE, holdable(lambda: got.append(others.acquire(timeout=10))))
    thread = threading.Thread(target=wait_for_lock)
    with lock, lock:
        thread.start()
        is_waited_for.wait()
        signal.raise_signal(FORCE)
        assert not got
    assert got == [True]
    thread.join()


def test_an_interrupt_leaves_the_lock_free() -> None:
    """It is raised at the end, once."""
    lock, done = SignalHoldingLock(), []
    with pytest.raises(KeyboardInterrupt), lock:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    thread = threading.Thread(target=lambda: (lock.__enter__(), lock.__exit__(None, None, None), done.append(2)))
    thread.start()
    thread.join(10)
    assert done == [1, 2]
