"""A session's connection to its executor."""

from __future__ import annotations

import subprocess
import sys

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
