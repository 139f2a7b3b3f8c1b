"""Memory that does not come back at the first try, and a session that leaves with none."""

from __future__ import annotations

import pytest

from sharedkernel import protocol
from sharedkernel.session.offload.host import RestoreFailed
from sharedkernel.session.offload.residency import bring_back
from tests.session.harness import SessionUnderTest


class FailingMemory:
    """Offloaded memory whose first *num_failures* restores fail with *error*."""

    def __init__(self, num_failures: int, error: type[BaseException] = RestoreFailed) -> None:
        self.num_failures = num_failures
        self.error = error
        self.num_tries = 0

    def restore(self, pause: object) -> None:
        self.num_tries += 1
        if self.num_tries <= self.num_failures:
            raise self.error("the driver refuses")


def test_a_restore_that_fails_for_a_moment_is_tried_again() -> None:
    """The room for it is kept meanwhile; one that keeps failing is given up, with its own error."""
    memory = FailingMemory(2)
    bring_back(memory.restore, print)
    assert memory.num_tries == 3
    memory = FailingMemory(3)
    with pytest.raises(RestoreFailed, match="the driver refuses"):
        bring_back(memory.restore, print)
    assert memory.num_tries == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_no_failure_of_the_device_is_raised_at_once(error: type[BaseException]) -> None:
    """Above all an interrupt."""
    memory = FailingMemory(1, error)
    with pytest.raises(error):
        bring_back(memory.restore, print)
    assert memory.num_tries == 1


def test_a_cell_that_left_with_nothing_goes_on_under_a_new_executor(session: SessionUnderTest) -> None:
    """The room of its iterations was wanted while it waited: its successor hears that it is away, and lets it back."""
    request, report = session.give_way("print(int(torch.ones(3).sum()))")
    assert report.offloaded_bytes == 0
    since = session.mark
    session.hang_up()
    hello = session.wait_for(protocol.SessionHello, since)
    assert (hello.offloaded_bytes, hello.cell_open, hello.wanting) == (1, True, False)
    session.say(protocol.RestoreCommand())
    assert session.reply(request)["text"] == "3\n"
