"""What the main thread asks of another one, under interrupts."""

from __future__ import annotations

import _thread
import threading
import time

from sharedkernel.system.deferred_signals import InterruptSafeThread


def test_a_thread_that_runs_is_never_said_to_have_ended() -> None:
    """Until it has."""
    end = threading.Event()
    thread = InterruptSafeThread(target=end.wait)
    assert not thread.is_alive()
    thread.start()
    has_begun = is_over = False
    num_interrupts = 0
    answers = set()

    def interrupt() -> None:
        while not is_over:
            time.sleep(1e-4)
            if has_begun:
                _thread.interrupt_main()

    shower = threading.Thread(target=interrupt)
    shower.start()
    while num_interrupts < 300:
        try:
            has_begun = True
            while True:
                answers.add(thread.is_alive())
        except KeyboardInterrupt:
            num_interrupts += 1
    while has_begun or not is_over:
        try:
            is_over = True
            shower.join()
            has_begun = False
        except KeyboardInterrupt:
            pass
    end.set()
    thread.join()
    assert (answers, thread.is_alive()) == ({True}, False)
