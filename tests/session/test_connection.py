"""A session's connection to its executor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FORK_WHILE_LOCKED = """if True:
    import os, threading
    from sharedkernel import protocol
    from sharedkernel.session.connection import Link

    link = Link("nowhere")
    locked, done = threading.Event(), threading.Event()

    def hold():
        with link.lock:
            locked.set()
            done.wait()

    threading.Thread(target=hold, daemon=True).start()
    locked.wait()
    child = os.fork()
    if not child:
        link.send(protocol.CellOpenedReport())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
"""


def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_will_release() -> None:
    """Another thread may have held it at the fork; the child has nothing to say in its parent's name anyway."""
    subprocess.run([sys.executable, "-c", _FORK_WHILE_LOCKED], check=True, timeout=60)


_WITHOUT_DESCRIPTORS = """if True:
    import os, resource, socket, sys, time
    from sharedkernel import protocol
    from sharedkernel.session.connection import RETRY_INTERVAL, Link

    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(30)
    listener.bind(sys.argv[1])
    listener.listen()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    link = Link(sys.argv[1])
    link.start(protocol.CellOpenedReport, print)
    time.sleep(5 * RETRY_INTERVAL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert listener.accept()[0].recv(1)
    os._exit(0)
"""


def test_a_session_that_can_open_no_files_reaches_its_executor_later(scratch: Path) -> None:
    """It tries again as it does where nobody listens."""
    subprocess.run([sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(scratch / "socket")], check=True, timeout=60)


_HUNG = """if True:
    import os, socket, sys, threading
    from sharedkernel import protocol
    from sharedkernel.session.connection import Link

    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(30)
    listener.bind(sys.argv[1])
    listener.listen()
    link = Link(sys.argv[1])
    link.start(protocol.CellOpenedReport, print)
    first, _ = listener.accept()
    assert first.recv(1)
    for _ in range(20):
        link.send(*[protocol.CellOpenedReport()] * 2000)
    assert listener.accept()[0].recv(1)
    os._exit(0)
"""


def test_a_session_does_not_wait_for_an_executor_that_reads_nothing(scratch: Path) -> None:
    """It hangs up on it and greets it anew, which covers all that was sent before."""
    subprocess.run([sys.executable, "-c", _HUNG, str(scratch / "socket")], check=True, timeout=60)
