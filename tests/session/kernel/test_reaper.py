"""What becomes of the programs that a real session's programs leave behind."""

from __future__ import annotations

import pytest

from tests.session.harness import SessionUnderTest

#: waits until a child of the session's has ended, without taking note of it
_ENDED = """
import os, subprocess
def ended(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
"""
#: prints the id of a process whose parent is gone; started as `!` commands are, in a session of their own
_ORPHAN = """
shell = subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
print(ended(int(shell.stdout)))
"""


@pytest.fixture(scope="module")
def session(session: SessionUnderTest) -> SessionUnderTest:
    session.run(_ENDED)
    return session


def test_an_adopted_program_is_gone_after_the_cell_in_which_it_ended(session: SessionUnderTest) -> None:
    """Nothing of it is left in the system's list of processes."""
    pid = session.run(_ORPHAN)["text"].strip()
    assert session.run(f"print(os.path.exists('/proc/{pid}'))")["text"] == "False\n"


def test_who_started_a_program_gets_its_exit_code(session: SessionUnderTest) -> None:
    """However many cells later it is asked for; also that of a forked child, of which no library keeps count."""
    session.run(
        "programs = [subprocess.Popen(['sh', '-c', 'exit 3'], start_new_session=own) for own in (False, True)]\n"
        "for own in programs: ended(own.pid)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(4)\n"
        "ended(pid)"
    )
    session.run(_ORPHAN)
    session.run("pass")
    assert session.run("print([own.wait() for own in programs])")["text"] == "[3, 3]\n"
    assert session.run("print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")["text"] == "4\n"
