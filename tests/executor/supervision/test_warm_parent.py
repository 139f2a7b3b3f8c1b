"""What the warm parent must not have done before it forks, and when it ends."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.executor.supervision.warm_parent import why_unfit
from sharedkernel.ipc.seqpacket import PacketSocket
from tests.executor.harness import PATIENCE
from tests.executor.supervision import BareWarmParent


def test_an_initialised_driver_is_noticed_by_what_it_opens(tmp_path: Path) -> None:
    """A child could not use the GPU, so that is said before there is one."""
    for number, target in enumerate(("/dev/null", "socket:[1]", "/dev/nvidiactl", "/dev/nvidia0")):
        (tmp_path / str(number)).symlink_to(target)
    assert why_unfit(tmp_path) is None
    (tmp_path / "9").symlink_to("/dev/nvidia-uvm")
    assert "does not survive a fork" in (why_unfit(tmp_path) or "")


def test_it_ends_although_its_executor_went_while_it_was_starting(scratch: Path) -> None:
    """Told to fork a session and then to quit, by one that waited for neither: it leaves nothing behind."""
    with BareWarmParent(scratch) as parent:
        executor = parent.connect()
        parent.process.send_signal(signal.SIGSTOP)
        parent.fork(executor)
        executor.send(protocol.Quit())
        executor.close()
        parent.process.send_signal(signal.SIGCONT)
        assert parent.process.wait(PATIENCE) == 0


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


@pytest.mark.heavy
def test_it_ends_once_no_executor_has_come_for_a_while(scratch: Path) -> None:
    """Its executor was killed; while one is connected it waits for as long as that takes."""
    with BareWarmParent(scratch, patience=0.5) as parent:
        executor = parent.connect()
        time.sleep(1.0)
        assert parent.process.poll() is None
        executor.close()
        assert parent.process.wait(PATIENCE) == 0


#: of a user id that has no other process, as root's would have no limit; may have others from SIGUSR1 on
_ALONE = """
if os.getuid() == 0:
    os.setresuid(229999, 229999, 229999)
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard)))
"""


def test_it_lives_on_where_no_process_can_be_forked(scratch: Path) -> None:
    """It says why, and forks the next session once there is room again."""
    with BareWarmParent(scratch, prepare=_ALONE) as parent:
        executor = parent.connect()
        parent.fork(executor)
        answer, _ = executor.receive()
        assert (answer.process, answer.why) == ("p", "Resource temporarily unavailable")
        parent.process.send_signal(signal.SIGUSR1)
        parent.fork(executor)
        assert isinstance(executor.receive()[0], protocol.Forked)
        executor.send(protocol.Quit())
        assert parent.process.wait(PATIENCE) == 0
        executor.close()
