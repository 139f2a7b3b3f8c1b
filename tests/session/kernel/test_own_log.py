"""A session's own log and its user's logging: neither sees the other, nor waits for it."""

from __future__ import annotations

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from tests.session.harness import SessionUnderTest, wait_until


def refuse(session: SessionUnderTest, sentence: str) -> None:
    """Have the session log *sentence*, on the thread that hears the executor."""
    session.say(protocol.Failed(request=0, message=sentence, reason=ProtocolError.reason))
    wait_until(lambda: sentence in session.log(), session.log)


def test_the_users_records_are_not_in_the_sessions_log(session: SessionUnderTest) -> None:
    """Whatever the user configures; and the session's are not in the notebook.

    Levels, filters and whole configurations are for the user's records, too.
    """
    reply = session.run("import logging; logging.basicConfig(level=logging.DEBUG); logging.info('a secret')")
    assert "a secret" in reply["text"]
    refuse(session, "not today")
    assert "not today" not in session.run("logging.warning('another secret')")["text"]
    assert "secret" not in session.log()
    session.run(
        "import logging.config\n"
        "logging.disable(logging.CRITICAL)\n"
        "logging.getLogger('sharedkernel.session.kernel.app').disabled = True\n"
        "logging.config.dictConfig({'version': 1})"
    )
    refuse(session, "nor tomorrow")


def test_it_waits_for_no_lock_of_the_users(session: SessionUnderTest) -> None:
    """An interrupted cell may leave them all locked; the session logs on, and serves its user.

    After a crash in a library the stacks are there: all that is known of it otherwise is the signal's name.
    """
    session.run(
        "import logging, threading\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    logging.basicConfig(level=logging.INFO)\n"
        "    logging.root.handlers[0].acquire()\n"
        "    logging._acquireLock() if hasattr(logging, '_acquireLock') else logging._lock.acquire()\n"
        "    held.set()\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=hold, daemon=True).start()\n"
        "held.wait()"
    )
    refuse(session, "never")
    assert session.run("print(int(torch.ones(3).sum()))")["text"] == "3\n"
    session.client.execute("import ctypes; ctypes.string_at(0)")
    wait_until(lambda: "in string_at" in session.log(), session.log)
    assert "Fatal Python error: Segmentation fault" in session.log()
