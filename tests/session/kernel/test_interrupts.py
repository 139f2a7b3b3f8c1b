"""An interrupt at any moment: what it meets has its reply, and what comes after works."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sharedkernel import protocol
from sharedkernel.session.kernel.interrupts import Interrupts
from tests.session.harness import PATIENCE, SessionUnderTest


@pytest.fixture
def session(session: SessionUnderTest) -> Iterator[SessionUnderTest]:
    yield session
    session.on_wanted, session.on_withdrawn = session.grant, session.see_withdrawal


@pytest.mark.parametrize(
    ("code", "error"), [("6 * 7", "KeyboardInterrupt"), ("await asyncio.sleep(0)", "CancelledError")]
)
def test_a_cell_that_is_interrupted_at_any_moment_has_its_reply(
    session: SessionUnderTest, code: str, error: str
) -> None:
    """Also before its first line and after its last, where nobody's code runs."""
    session.run("import asyncio")
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


def test_a_cell_that_is_said_to_run_is_interrupted(session: SessionUnderTest) -> None:
    """From the message on that says so, though it has not begun by then."""
    for _ in range(100):
        request = session.client.execute("import time\nfor _ in range(500): time.sleep(0.01)")
        while session.client.get_iopub_msg(timeout=PATIENCE)["parent_header"].get("msg_id") != request:
            pass
        session.interrupt()
        assert session.reply(request).get("ename") == "KeyboardInterrupt"


def test_outputs_are_whole_after_interrupts_where_a_cell_prints(session: SessionUnderTest) -> None:
    """One thread sends them; where the main thread takes that for ended it sends beside it, between its frames."""
    reply = session.run(
        """if True:
    import _thread, threading, time
    outputs = get_ipython().kernel.iopub_thread
    has_begun, is_over, num_interrupts = False, False, 0
    def interrupt():
        while not is_over:
            time.sleep(1e-4)
            if has_begun:
                _thread.interrupt_main()
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    while num_interrupts < 300:
        try:
            has_begun = True
            while True:
                print(end="o")
                for _ in range(100):
                    outputs.thread.is_alive()  # as each output asks
        except KeyboardInterrupt:
            num_interrupts += 1
    while has_begun or not is_over:
        try:
            is_over = True
            interrupting.join()
            has_begun = False
        except KeyboardInterrupt:
            pass
    print("over", outputs.thread.is_alive())
    """
    )
    assert reply["status"] == "ok"
    printed = reply["text"].removesuffix("over True\n")
    assert printed
    assert printed.replace("o", "") == ""
    assert session.run("print(6 * 7)")["text"] == "42\n"


def test_a_grant_that_crosses_an_interrupt_does_not_answer_the_next_cell(session: SessionUnderTest) -> None:
    """Nor does the answer to the withdrawal, which comes late: the next cell waits for a grant of its own."""
    wanted = threading.Semaphore(0)
    session.on_wanted, session.on_withdrawn = lambda message: wanted.release(), session.grant
    request = session.client.execute("torch.zeros(1)")
    assert wanted.acquire(timeout=PATIENCE)
    since = session.mark
    session.interrupt()
    session.wait_for(protocol.DeviceWantWithdrawnReport, since)
    late = threading.Timer(0.3, session.see_withdrawal)
    late.start()
    reply = session.reply(request)
    assert reply["ename"] == "KeyboardInterrupt", reply
    assert not [line for line in reply["traceback"] if "sharedkernel" in line], "where the package waits is shown"
    request = session.client.execute("print(torch.zeros(1).sum().item())")
    assert wanted.acquire(timeout=PATIENCE)
    since = session.mark
    late.join()
    time.sleep(0.3)  # nothing may happen now
    assert session.kinds(since) == [], "it ran without a grant"
    session.grant()
    assert session.reply(request)["text"] == "0.0\n"


def test_an_executor_that_goes_away_at_a_withdrawal_keeps_no_cell_waiting(session: SessionUnderTest) -> None:
    """The next one is told by the greeting that the device is wanted, and has to be told that it is not."""
    wanted = threading.Semaphore(0)
    session.on_wanted = lambda message: wanted.release()
    for _ in range(30):
        request = session.client.execute("torch.zeros(1)")
        assert wanted.acquire(timeout=PATIENCE)
        session.on_withdrawn = session.hang_up
        since = session.mark
        session.interrupt()
        session.wait_for(protocol.DeviceWantWithdrawnReport, since)
        session.on_withdrawn = session.see_withdrawal
        session.wait_for(protocol.SessionHello, since)
        assert session.reply(request)["ename"] == "KeyboardInterrupt"
    session.on_wanted = session.grant
    assert session.run("print(torch.zeros(1).sum().item())")["text"] == "0.0\n"


def test_a_hook_that_waits_for_the_device_is_interrupted_with_its_cell(session: SessionUnderTest) -> None:
    """IPython goes on after its hooks whatever they meet; the cell of one that was interrupted does not run."""
    session.run("def hook(*_): print('hooked', flush=True); torch.zeros(1); print('went on')")
    session.run("get_ipython().events.register('pre_run_cell', hook)")
    session.on_wanted, since = lambda wanted: None, session.mark
    request = session.client.execute("print('-' * 9)")
    session.wait_for(protocol.DeviceWantedReport, since)
    session.interrupt()
    reply = session.reply(request)
    session.on_wanted = session.grant
    assert reply["ename"] == "KeyboardInterrupt", reply
    assert "hooked" in reply["text"]
    assert "went on" not in reply["text"]
    assert "-" * 9 not in reply["text"]
    reply = session.run("get_ipython().events.unregister('pre_run_cell', hook)")
    assert (reply["status"], reply["text"]) == ("ok", "hooked\nwent on\n")


_HANDLE = """
heard = []
previous = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
signal.raise_signal(signal.SIGINT)
print(heard, previous is signal.default_int_handler)
_ = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.raise_signal(signal.SIGINT)
_ = signal.signal(signal.SIGINT, previous)
print('ends')
signal.raise_signal(signal.SIGINT)
print('goes on')
"""


def test_a_handler_of_the_users_is_there_to_the_end_of_its_cell(session: SessionUnderTest) -> None:
    """For all its statements, as in any kernel; the next cell begins with Python's own."""
    session.run("import signal")
    reply = session.run(_HANDLE)
    assert (reply["ename"], reply["text"]) == ("KeyboardInterrupt", "[2] True\nends\n"), reply
    session.run("_ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert session.run("print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)")["text"] == "True\n"


@pytest.fixture
def handled() -> Iterator[Interrupts]:
    """Yield the interrupts of this process while it handles a request."""
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    interrupts.begin()
    yield interrupts
    interrupts.end()
    assert signal.getsignal(signal.SIGINT) == before


def test_one_that_came_between_two_statements_reaches_the_handler_that_the_first_set(handled: Interrupts) -> None:
    """It waits for the next one, and a request that is handled in the middle of one has a handler of its own."""
    heard: list[int] = []
    with handled.let_into_code():
        signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    signal.raise_signal(signal.SIGINT)
    assert heard == []
    with handled.let_into_code():
        assert heard == [signal.SIGINT]
        handled.begin()
        with pytest.raises(KeyboardInterrupt), handled.let_into_code():
            signal.raise_signal(signal.SIGINT)
        handled.end()
        signal.raise_signal(signal.SIGINT)
    with handled.let_through():
        signal.raise_signal(signal.SIGINT)
    assert len(heard) == 3
    with handled.let_into_code():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handled.let_into_code():
        pass
    with handled.let_into_code():
        pass


def test_what_a_handler_of_the_users_raises_around_their_code_is_an_interrupt(handled: Interrupts) -> None:
    """IPython shows errors of any kind only in the code itself; anywhere else the cell would have no reply."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with handled.let_into_code():
        signal.signal(signal.SIGINT, fail)
    with pytest.raises(ZeroDivisionError), handled.let_into_code():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handled.let_through():
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handled.let_through():
        pass
    with handled.let_into_code():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handled.let_through():
        signal.raise_signal(signal.SIGINT)


_LOG_AND_BE_INTERRUPTED = """
import logging, signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while True:
            logging.info("a line of the user's")
    except KeyboardInterrupt:
        pass
"""


def test_a_session_hears_its_executor_after_code_that_logs_was_interrupted(session: SessionUnderTest) -> None:
    """The thread that hears it logs, too, and no lock is left behind for which it would wait."""
    assert session.run(_LOG_AND_BE_INTERRUPTED)["status"] == "ok"
    session.say(protocol.Failed(request=0, reason="error", message="nothing of importance"))
    assert session.run("torch.zeros(1)")["status"] == "ok"
    assert "nothing of importance" in session.log()
