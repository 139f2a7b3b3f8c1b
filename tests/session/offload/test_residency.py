"""Memory that does not come back at the first try."""

from __future__ import annotations

import pytest

from sharedkernel.session.offload.host import RestoreFailed
from sharedkernel.session.offload.residency import bring_back


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
