"""What the warm parent must not have done before it forks, and when it ends."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.executor.supervision.environments import own_environment
from sharedkernel.executor.supervision.warm_parent import why_unfit
from sharedkernel.ipc.helper_process import scrubbed_environment
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.ipc.shared_page import Page
from tests.executor.harness import PATIENCE


def reach(path: Path) -> PacketSocket:
    """Connect to a warm parent that is starting."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            return connect(str(path), protocol.FromWarmParent)
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.heavy
def test_everything_sessions_share_is_imported_without_a_device() -> None:
    """Neither torch nor what is imported beside it initialises CUDA."""
    code = """if True:
        from sharedkernel.executor.supervision import warm_parent
        warm_parent.preload()
        import torch
        assert not torch.cuda.is_initialized()
        print(warm_parent.why_unfit())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_an_initialised_driver_is_noticed_by_what_it_opens(tmp_path: Path) -> None:
    """A child could not use the GPU, so that is said before there is one."""
    for number, target in enumerate(("/dev/null", "socket:[1]", "/dev/nvidiactl", "/dev/nvidia0")):
        (tmp_path / str(number)).symlink_to(target)
    assert why_unfit(tmp_path) is None
    (tmp_path / "9").symlink_to("/dev/nvidia-uvm")
    assert "does not survive a fork" in (why_unfit(tmp_path) or "")


@pytest.mark.heavy
def test_it_ends_although_its_executor_went_while_it_was_starting(scratch: Path) -> None:
    """Told to fork a session and then to quit, by one that waited for neither: it leaves nothing behind."""
    path = scratch / "warm.sock"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sharedkernel.executor.supervision.warm_parent",
            str(path),
            str(scratch / "executor.sock"),
            own_environment().build_id,
        ],
        env=scrubbed_environment(),
    )

    page = Page.create("test")
    try:
        executor = reach(path)
        parent.send_signal(signal.SIGSTOP)
        fork = protocol.Fork(process="p", connection_file=str(scratch / "c.json"), log_file=str(scratch / "log"))
        executor.send(fork, [page.descriptor])
        executor.send(protocol.Quit())
        executor.close()
        parent.send_signal(signal.SIGCONT)
        assert parent.wait(PATIENCE) == 0
    finally:
        left = psutil.Process(parent.pid).children() if parent.poll() is None else []
        for process in (*left, parent):
            process.kill()
        parent.wait()
        page.close()


def test_what_was_said_last_is_heard_of_one_that_did_not_read() -> None:
    """The system tells of what it left unread before it gives out what was sent."""
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, executor = PacketSocket(ours, protocol.ToWarmParent), PacketSocket(other, protocol.FromWarmParent)
    parent.send(protocol.Forked(process="p", pid=1))
    executor.send(protocol.Quit())
    executor.close()
    assert isinstance(parent.receive()[0], protocol.Quit)
    assert parent.receive() == (None, [])
    parent.close()


_LONELY = """
import sys
from sharedkernel.executor.supervision.warm_parent import WarmParent

WarmParent(sys.argv[1], "", patience=0.5).run()
"""


@pytest.mark.heavy
def test_it_ends_once_no_executor_has_come_for_a_while(scratch: Path) -> None:
    """Its executor was killed; while one is connected it waits for as long as that takes."""
    path = scratch / "warm.sock"
    with subprocess.Popen([sys.executable, "-c", _LONELY, str(path)]) as parent:
        executor = reach(path)
        time.sleep(1.0)
        assert parent.poll() is None
        executor.close()
        assert parent.wait(PATIENCE) == 0


#: of a user id that has no other process, as root's would have no limit; may have others from SIGUSR1 on
_ALONE = """
import os, resource, signal, sys
from sharedkernel.executor.supervision.warm_parent import WarmParent

parent = WarmParent(sys.argv[1], "")
if os.getuid() == 0:
    os.setresuid(229999, 229999, 229999)
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard)))
parent.run()
"""


def test_it_lives_on_where_no_process_can_be_forked(scratch: Path) -> None:
    """It says why, and forks the next session once there is room again."""
    path = scratch / "warm.sock"
    page = Page.create("test")
    fork = protocol.Fork(process="p", connection_file=str(scratch / "c.json"), log_file=str(scratch / "log"))
    with subprocess.Popen([sys.executable, "-c", _ALONE, str(path)]) as parent:
        try:
            executor = reach(path)
            executor.set_timeout(PATIENCE)
            executor.send(fork, [page.descriptor])
            answer, _ = executor.receive()
            assert (answer.process, answer.why) == ("p", "Resource temporarily unavailable")
            parent.send_signal(signal.SIGUSR1)
            executor.send(fork, [page.descriptor])
            assert isinstance(executor.receive()[0], protocol.Forked)
            executor.send(protocol.Quit())
            assert parent.wait(PATIENCE) == 0
            executor.close()
        finally:
            parent.kill()
            page.close()
