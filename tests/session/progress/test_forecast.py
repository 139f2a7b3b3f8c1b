"""What a real session says of the work that its cell shows."""

from __future__ import annotations

import ast

import pytest

from sharedkernel import protocol
from sharedkernel.session.progress.progress import Forecast, Progress, source_hash
from tests.session.harness import SessionUnderTest

#: multiplies two matrices once per iteration, until it is interrupted
MULTIPLYING = """
import sharedkernel
a, b = torch.ones(32, 64), torch.ones(64, 128)
for i in sharedkernel.iterations(range(10**9)):
    torch.mm(a, b)
"""


def is_work_known(said: protocol.Foreseen) -> bool:
    """Whether it says how much is left."""
    return said.remaining_iterations is not None


def test_the_source_is_said_with_the_first_want_and_is_the_same_however_it_is_written(
    session: SessionUnderTest,
) -> None:
    """A cell that does not use the device says nothing; one that does says its source before it wants the device."""
    since = session.mark
    session.run("x = 1")
    assert "Foreseen" not in session.kinds(since)
    sources = []
    for code in ("x = torch.ones(3) + 1", "x=torch.ones( 3 )+1  # again", "%time x = torch.ones(3) + 1"):
        since = session.mark
        assert session.run(code)["status"] == "ok"
        kinds = session.kinds(since)
        assert kinds.index("Foreseen") < kinds.index("DeviceWanted")
        sources.append(session.wait_for(protocol.Foreseen, since).source)
    assert sources[0] == sources[1] != sources[2]


IN_FUNCTIONS = {
    "range": "def work(n):\n  for i in range(n): a @ b\nwork(10**9)",
    "generator": "def items():\n  for i in range(10**7): yield i\ndef work():\n  for i in items(): a @ b\nwork()",
}


@pytest.mark.parametrize("code", IN_FUNCTIONS.values(), ids=IN_FUNCTIONS)
def test_what_a_loop_without_boundaries_has_left_is_known(session: SessionUnderTest, code: str) -> None:
    """In functions, which are left as they were written, it is counted by the signals between two bytecodes."""
    session.run("a, b = torch.ones(32, 64), torch.ones(64, 128)")
    since = session.mark
    request = session.client.execute(code)
    said = session.wait_for(protocol.Foreseen, since, where=is_work_known)
    assert said.remaining_iterations is not None
    assert 10**6 < said.remaining_iterations <= 10**9
    assert said.iteration_seconds
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"


def test_what_is_said_long_after_a_look_counts_what_passed_since() -> None:
    """Beside others a session passes most boundaries without a look: the count of the last one is not repeated."""
    progress = Progress()
    forecast = Forecast(progress)
    forecast.section_began()
    forecast.grant_began(0)
    with progress.said("loop", 100) as counter:
        for iterations in (0, 10):
            counter.started = 1 + iterations
            forecast.look(iterations)
    first = forecast.news(10)
    forecast.source_read("x = 1")  # news of another kind
    later = forecast.news(70)
    assert first is not None
    assert later is not None
    assert first.remaining_iterations is not None
    assert later.remaining_iterations == first.remaining_iterations - 60


def test_a_new_executor_is_told_again(session: SessionUnderTest) -> None:
    """What the last one was told, the next has to know: the source with the greeting, the rest with the next news."""
    since = session.mark
    request = session.client.execute(MULTIPLYING)
    first = session.wait_for(protocol.Foreseen, since, where=is_work_known)
    since = session.mark
    session.hang_up()
    hello = session.wait_for(protocol.SessionHello, since)
    assert hello.source == first.source
    again = session.wait_for(protocol.Foreseen, since, where=is_work_known)
    assert again.source == first.source
    session.interrupt()
    session.reply(request)


def test_a_source_is_what_it_does() -> None:
    """Comments, spaces and quotes make no difference, names and numbers do."""
    written = source_hash(ast.parse("for i in range(3):\n    f(i, 'a')"))
    assert source_hash(ast.parse('for i in range( 3 ):  # thrice\n\n  f(i,"a")')) == written
    assert source_hash(ast.parse("for i in range(4):\n    f(i, 'a')")) != written
    assert source_hash(ast.parse("for j in range(3):\n    f(j, 'a')")) != written
