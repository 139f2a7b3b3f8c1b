"""Where a session waits that has given the device back at a boundary, and where its dispatch mode is meanwhile."""

from __future__ import annotations

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from tests.session.harness import GIB, SessionUnderTest

#: prints for each iteration whether the mode is in after the boundary, before anything else uses the device
TRAIN = """
import time, torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
x, layer = torch.ones(8, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters())
seen = []
try:
    for _ in range({iterations}):
        optimizer.zero_grad()
        seen.append(len(modes()))
        time.sleep({pause})
        layer(x).sum().backward()
        optimizer.step()
finally:
    print(*seen, len(modes()))
"""


@pytest.fixture
def session(session: SessionUnderTest) -> SessionUnderTest:
    """Return a session with ample room, whose executor wants each grant back as soon as it is given."""
    session.preempt_at_once()
    session.limit(64 * GIB)
    return session


# first, while nothing is known of code that goes on at once
def test_code_that_does_something_else_first_does_not(session: SessionUnderTest) -> None:
    """Others have the device meanwhile."""
    reply = session.run(TRAIN.format(iterations=40, pause=0.01))
    assert reply["status"] == "ok", reply
    assert set(reply["text"].split()[1:-1]) == {"1"}


def test_code_that_goes_on_at_once_waits_at_its_boundary(session: SessionUnderTest) -> None:
    """It has the device when it comes back from there, and the mode is out."""
    reply = session.run(TRAIN.format(iterations=200, pause=0))
    assert reply["status"] == "ok", reply
    # now and then the next operation waits, to see how soon it comes
    assert set(reply["text"].split()[20:-1]) == {"0", "1"}


def test_an_interrupt_ends_the_wait_at_a_boundary(session: SessionUnderTest) -> None:
    """Afterwards the mode is in, so the next operation asks for the device again."""
    grants = 0

    def answer(wanted: protocol.DeviceWantedReport) -> None:
        nonlocal grants
        grants += 1
        session.page.words[Word.PREEMPT] = 1
        if grants == 100:
            session.interrupt()
        else:
            session.say(protocol.Granted())

    session.on_wanted = answer
    reply = session.run(TRAIN.format(iterations=200, pause=0))
    assert reply["ename"] == "KeyboardInterrupt"
    assert reply["text"].split()[-1] == "1"
    before = grants
    assert session.run("print(float((x + 1).sum()))")["text"] == "128.0\n"
    assert grants > before
