"""A cell that needs more than its lease asks for it, waits, and goes on; or ends with the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Word
from tests.session.harness import GIB, SessionUnderTest

MIB = 1 << 20


@pytest.fixture
def session(session: SessionUnderTest) -> Iterator[SessionUnderTest]:
    """Yield a session that may use 256 MiB of a quota of 64 GiB."""
    session.limit(256 * MIB)
    session.run("pass")
    yield session
    session.reset()


def give(session: SessionUnderTest, asked: list[protocol.DeviceWantedReport]) -> None:
    """Have the executor give what growths ask for, and note them in *asked*."""

    def answer(wanted: protocol.DeviceWantedReport) -> None:
        asked.append(wanted)
        live = max(0, session.page.words[Word.LIVE])
        session.limit(wanted.memory.persistent + live + wanted.growth)
        session.grant()

    session.decide_growth(answer)


def refusal(message: str) -> protocol.RefusedGrant:
    return protocol.RefusedGrant(reason="memory", message=message)


def test_an_allocation_that_failed_is_done_again_with_more(session: SessionUnderTest) -> None:
    """The operation returns as if nothing had been; the device was free meanwhile, its live bytes charged."""
    asked: list[protocol.DeviceWantedReport] = []
    give(session, asked)
    since = session.mark
    reply = session.run("a = torch.ones(32 << 20)\nb = torch.ones(128 << 20)\nprint(float(b.sum()), len(a))")
    assert reply["text"] == f"{float(128 << 20)} {32 << 20}\n"
    assert max(wanted.growth for wanted in asked) >= 512 * MIB
    released = session.wait_for(protocol.GrantReleasedReport, since)
    assert (released.at, released.live_bytes) == ("yield", pytest.approx(128 * MIB, abs=8 * MIB))


def test_what_is_freed_after_a_refusal_counts_with_the_next_request(session: SessionUnderTest) -> None:
    """The figures of the last boundary would be refused again, though the memory is there."""
    session.run("kept = torch.ones(16 << 20)")
    asked: list[protocol.DeviceWantedReport] = []

    def refuse_first(wanted: protocol.DeviceWantedReport) -> None:
        asked.append(wanted)
        is_large = wanted.memory.persistent > 48 * MIB
        session.say(refusal("full") if is_large else protocol.Granted())

    session.on_wanted = refuse_first
    reply = session.run(
        "try:\n    torch.ones(1)\nexcept torch.OutOfMemoryError as error:\n    del kept\n    print(error)\n"
        "print(int(torch.ones(3).sum()))"
    )
    assert reply["text"] == "full\n3\n"
    assert asked[0].memory.persistent - asked[-1].memory.persistent == pytest.approx(64 * MIB, abs=MIB)


def refuse_all(session: SessionUnderTest) -> None:
    session.on_wanted = lambda wanted: session.say(refusal("full"))


def test_what_earlier_code_needed_is_forgotten_once_it_is_refused(session: SessionUnderTest) -> None:
    """What runs now may need less, so it is asked for once more, without."""
    session.run("float((torch.ones(10 << 20) + 1).sum())")
    since = session.mark
    refuse_all(session)
    reply = session.run("torch.ones(3)")
    assert (reply["ename"], reply["evalue"]) == ("OutOfMemoryError", "full")
    needs = [
        wanted.memory.ephemeral for wanted in session.heard[since:] if isinstance(wanted, protocol.DeviceWantedReport)
    ]
    assert len(needs) == 2
    assert needs[0] > 10 * MIB
    assert not needs[1]


_HUNGRY = """
import os, time, torch
tries = []
@torch.library.custom_op("test::hungry", mutates_args=())
def hungry(x: torch.Tensor) -> torch.Tensor:
    tries.append(1)
    if len(tries) == 1:
        print("runs\\n", end="", flush=True)  # in one piece
        while not os.path.exists({path!r}):
            time.sleep(0.01)
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory: "
                           "you tried to allocate 134217728 bytes. Error code 12 (Cannot allocate memory)")
    return x + 1
print(hungry(torch.zeros(2)).tolist(), len(tries))
"""


def test_an_operation_that_lost_the_device_before_it_failed_is_done_again(
    session: SessionUnderTest, tmp_path: Path
) -> None:
    """The executor's signal may come during an operation; its handler runs before that of the error."""
    give(session, asked := [])
    since, goes_on = session.mark, tmp_path / "goes on"
    request = session.client.execute(_HUNGRY.format(path=str(goes_on)))
    session.until_printed("runs")
    session.page.words[Word.PREEMPT] = 1
    os.kill(session.process.pid, FORCE_SIGNAL)
    assert session.wait_for(protocol.GrantReleasedReport, since).at == "yield"
    goes_on.touch()
    assert session.reply(request)["text"] == "[1.0, 1.0] 2\n"
    assert [wanted.growth >= 128 * MIB for wanted in asked] == [True]


def test_what_an_interrupted_iteration_has_is_not_forgotten(session: SessionUnderTest) -> None:
    """A refusal in its middle is the user's error, as what it needs is no guess."""
    before = session.mark
    session.run("float((torch.ones(10 << 20) + 1).sum())")
    session.wait_for(protocol.CellClosedReport, before)  # and so its release, which the reply may overtake
    since = session.mark
    # Of what is run from text no loop is known: it has no boundary where it would give the grant back by itself.
    request = session.client.execute(
        "a = torch.ones(10 << 20)\nprint('runs', flush=True)\nexec('while True: b = a + 1')"
    )
    session.wait_for(protocol.DeviceWantedReport, since)
    session.until_printed("runs")
    refuse_all(session)
    session.page.words[Word.PREEMPT] = 1
    os.kill(session.process.pid, FORCE_SIGNAL)
    assert session.wait_for(protocol.GrantReleasedReport, since).at == "yield"
    assert session.reply(request)["ename"] == "OutOfMemoryError"


def test_a_wait_for_more_can_be_interrupted(session: SessionUnderTest) -> None:
    """The cell ends; the wish is withdrawn; the next cell is as ever."""
    session.decide_growth(lambda wanted: None)
    since = session.mark
    request = session.client.execute("torch.ones(1 << 30)")
    session.wait_for(protocol.DeviceWantedReport, since, where=lambda wanted: wanted.growth > 0)
    session.interrupt()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"
    session.wait_for(protocol.DeviceWantWithdrawnReport, since)
    assert session.run("print(int(torch.ones(3).sum()))")["text"] == "3\n"


def test_beyond_the_quota_nothing_is_asked(session: SessionUnderTest) -> None:
    """What can never be given is an error at once, with the figures of the quota."""
    session.limit(256 * MIB, quota=300 * MIB)
    since = session.mark
    reply = session.run("torch.ones(1 << 30)")
    assert reply["ename"] == "OutOfMemoryError"
    assert "your quota is 300 MiB" in reply["evalue"]
    assert not any(getattr(message, "growth", 0) for message in session.heard[since:])


def test_headroom_that_is_refused_is_no_error(session: SessionUnderTest) -> None:
    """The next operation may fit; it is not asked for again until much more is used."""
    session.decide_growth(lambda wanted: session.say(refusal("full")))
    session.limit(256 * MIB, slack=GIB)  # the process's limit is not what this is about
    since = session.mark
    reply = session.run("a = torch.ones(59 << 20)\nfor _ in range(5000):\n    b = a[:10] + 1\nprint(float(b.sum()))")
    assert reply["text"] == "20.0\n", reply
    assert len([message for message in session.heard[since:] if getattr(message, "growth", 0)]) == 1


def test_a_cell_that_ends_beyond_the_quota_within_the_slack_fails(session: SessionUnderTest) -> None:
    """What nothing refused meanwhile is its error at the end; what it made is there, and can be freed in peace."""
    session.limit(128 * MIB, quota=128 * MIB, slack=GIB)
    reply = session.run("big = torch.ones(50 << 20)\nprint('made')")
    assert (reply["status"], reply["ename"], reply["text"]) == ("error", "OutOfMemoryError", "made\n")
    assert "your quota is 128 MiB" in reply["evalue"]
    assert "del name" in reply["evalue"]
    assert session.run("print(int(big.sum()))")["text"] == f"{50 << 20}\n"
    assert session.run("del big")["status"] == "ok"
    assert session.run("small = torch.ones(10 << 20)")["status"] == "ok"


def test_an_overrun_without_any_device_operation_fails_too(session: SessionUnderTest) -> None:
    """Memory of other libraries counts, though the gate never hears of it; a cell's own error stays its error."""
    session.limit(128 * MIB, quota=128 * MIB, slack=GIB)
    # With its grant, it has heard of the limit, too.
    assert session.run("import numpy; torch.ones(1)")["status"] == "ok"
    reply = session.run("array = numpy.ones(25 << 20)")
    assert reply["ename"] == "OutOfMemoryError"
    reply = session.run("more = numpy.ones(25 << 20)\n1 / 0")
    assert reply["ename"] == "ZeroDivisionError"
