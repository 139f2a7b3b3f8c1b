"""The dispatch mode leaves after one operation, is back when memory gets scarce, and stays out where it would show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharedkernel import protocol
from tests.session.harness import GIB, SessionUnderTest

MIB = 1 << 20

PREPARE = """
import signal, time, torch, sharedkernel
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
x, layer = torch.ones(8, 8), torch.nn.Linear(8, 8)
"""


@pytest.fixture
def session(session: SessionUnderTest) -> Iterator[SessionUnderTest]:
    """Yield a session that has prepared, and has 64 GiB."""
    session.run(PREPARE)
    yield session
    session.reset()


def run(session: SessionUnderTest, code: str) -> tuple[list[str], list[str]]:
    """Run a cell that ends well; return the lines that it printed, and where it gave the device back."""
    since = session.mark
    reply = session.run(code)
    assert reply["status"] == "ok", reply
    # what is heard of an earlier cell may come late
    opened = session.heard.index(session.wait_for(protocol.CellOpenedReport, since), since)
    closed = session.heard.index(session.wait_for(protocol.CellClosedReport, opened), opened)
    heard = session.heard[opened:closed]
    return reply["text"].splitlines(), [
        message.at for message in heard if isinstance(message, protocol.GrantReleasedReport)
    ]


def test_it_is_back_when_memory_gets_scarce() -> None:
    """Then more is asked for before an allocation fails."""
    # a session of its own: what it leaves free on its heap is there for allocations of others, whatever the limit
    with SessionUnderTest() as session:
        session.run(PREPARE)
        asked: list[int] = []

        def give(wanted: protocol.DeviceWantedReport) -> None:
            asked.append(wanted.growth)
            session.limit(GIB + wanted.growth, quota=GIB + 256 * MIB)
            session.grant()

        session.decide_growth(give)
        session.limit(GIB, quota=GIB + 256 * MIB)
        session.run("pass")
        reply = session.run(
            "parts = [torch.ones(1)]\n"
            "print(len(modes()))\n"
            "for _ in range(48): parts.append(torch.ones(4 << 20))\n"
            "while not modes(): time.sleep(0.001)\n"
            "for _ in range(18): parts.append(torch.ones(4 << 20))\n"
            "print(sum(map(len, parts)) >> 20)"
        )
        assert reply["text"] == f"0\n{66 * 4}\n", (reply["evalue"], session.log()[-600:])
        assert asked


def test_a_cell_that_failed_for_memory_asks_for_it_first_when_it_runs_again(session: SessionUnderTest) -> None:
    """The error has the figures, and says so."""
    quota = 700 * MIB
    session.limit(512 * MIB, quota=quota)
    cell = "first = torch.ones(1)\nbig = torch.ones(600 << 18)\nprint(len(big) >> 18)"
    reply = session.run(cell)
    assert reply["ename"] == "OutOfMemoryError"
    for part in ("asked for 600 MiB more", "may use 512 MiB", "your quota is 700 MiB", "cell again: it"):
        assert part in reply["evalue"]
    asked: list[int] = []

    def give(wanted: protocol.DeviceWantedReport) -> None:
        asked.append(wanted.growth)
        session.limit(quota, quota=quota)
        session.grant()

    session.decide_growth(give)
    assert session.run("second = torch.ones(1)")["status"] == "ok"
    assert not asked
    assert session.run(cell)["text"] == "600\n"
    assert asked[0] >= 600 * MIB


def test_nothing_yields_in_the_middle_of_a_trace(session: SessionUnderTest) -> None:
    """It is whole; the next signal after it is heard."""
    session.preempt_at_once()
    code = (
        "def double(a):\n"
        "    signal.raise_signal(signal.SIGURG)\n"
        "    return a.view(a.size(0), -1) * 2\n"
        "print([node.kind() for node in torch.jit.trace(double, x, check_trace=False).graph.nodes()][-1], len(modes()))"
    )
    assert run(session, code) == (["aten::mul 0"], ["cell"])
    _, released_at = run(session, f"{code}\nsignal.raise_signal(signal.SIGURG)\ny = x + x")
    assert released_at[0] == "yield"


def test_compiled_code_has_the_device_before_its_first_line(session: SessionUnderTest) -> None:
    """What it runs may use the device without an operation that is dispatched."""
    printed, released_at = run(
        session,
        "import sys, torch._dynamo\n"
        "gate = sys.modules['sharedkernel.session.kernel.app'].boundaries._gate\n"
        "@torch._dynamo.disable\n"
        "def look():\n    print(gate.standing.is_held, len(modes()))\n"
        "@torch.compile(backend='eager')\n"
        "def compiled(a):\n    look()\n    return a + 1\n"
        "print(gate.standing.is_held)\n"
        "shape = compiled(x).shape",
    )
    assert printed == ["False", "True 0"]
    assert released_at == ["cell"]


def test_a_profile_counts_right_however_often_the_device_is_given_back(session: SessionUnderTest) -> None:
    """At each boundary, once that is learned, it is acquired again at once, so no operation passes the mode."""
    session.preempt_at_once()
    printed, released_at = run(
        session,
        "with torch.profiler.profile() as profile:\n"
        "    for _ in sharedkernel.iterations(range(100)): layer(x)\n"
        "counts = {event.key: event.count for event in profile.key_averages()}\n"
        "print(counts['aten::linear'], counts['aten::addmm'], 'PythonDispatchMode' in counts)",
    )
    assert printed[-1] == "100 100 False"
    assert released_at.count("boundary") >= 8


def test_a_profile_that_is_left_open_is_none_of_the_next_cells(session: SessionUnderTest) -> None:
    """Its cell gives the device back at the end, and later ones go on as ever."""
    assert run(session, "profile = torch.profiler.profile()\nprofile.start()\ny = x + x")[1] == ["cell"]
    assert run(session, "profile.stop()\ny = x + x\nprint(len(modes()))")[0][-1] == "0"


def test_quick_forwards_are_not_watched_all_the_time() -> None:
    """Hooks on all modules show where they end, and then leave: each call would cost twice as much."""
    with SessionUnderTest() as session:
        session.run(PREPARE)
        # of what is run from text no loop is known
        printed, _ = run(
            session,
            "import sys\n"
            "boundaries = sys.modules['sharedkernel.session.kernel.app'].boundaries\n"
            "hooks = torch.nn.modules.module._global_forward_pre_hooks\n"
            "exec('while not boundaries._kind or hooks: layer(x)')\n"
            "print(boundaries._kind, len(hooks))",
        )
    assert printed == ["forward 0"]
