"""A session that is offloaded: what restores it, what does not, and that it is never in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from tests.session.harness import SessionUnderTest

MIB = 1 << 20
_KEEP = """
kept = torch.arange(4 << 20, dtype=torch.int32)  # 16 MiB
array, address, total = kept.numpy(), kept.data_ptr(), (4 << 20) * ((4 << 20) - 1) // 2
def right():
    return kept.data_ptr() == address and int(kept.sum(dtype=torch.int64)) == total and int(array[-1])
"""


_COMM = """
from comm import get_comm_manager
def opened(comm, message):
    @comm.on_msg
    def received(message):
        array[0] = message["content"]["data"]["value"]  # no operation of torch's: nothing would notice it
get_comm_manager().register_target("writes", opened)
"""


@pytest.fixture
def session(session: SessionUnderTest) -> Iterator[SessionUnderTest]:
    """Yield a session that keeps 16 MiB, in place; at the end they come back, and are right."""
    session.run(_KEEP + _COMM)
    yield session
    assert session.run_restored("print(right())")["text"] == f"{(4 << 20) - 1}\n"


def test_the_memory_is_free_and_the_figures_follow(session: SessionUnderTest) -> None:
    """16 MiB are reported as moved, and are no part of the persistent bytes any more; restored, they are again."""
    session.run("pass")
    before = session.page.words[Word.PERSISTENT]
    report = session.offload()
    assert report.offloaded_bytes == pytest.approx(16 * MIB, abs=MIB)
    assert report.memory.persistent == pytest.approx(before - 16 * MIB, abs=2 * MIB)
    assert session.page.words[Word.PERSISTENT] == pytest.approx(report.memory.persistent, abs=MIB)
    assert report.memory.framework > 0
    since = session.mark
    session.run_restored("pass")
    assert session.wait_for(protocol.RestoredReport, since).memory.persistent == pytest.approx(before, abs=2 * MIB)


def test_a_cell_runs_only_once_its_memory_is_back(session: SessionUnderTest) -> None:
    """It opens, is restored, says so, and only then wants the device."""
    session.offload()
    since = session.mark
    reply = session.run_restored("print(int(kept[5]))")
    assert reply["text"] == "5\n"
    session.wait_for(protocol.CellClosedReport, since)
    kinds = session.kinds(since)
    assert kinds[:4] == ["CellOpened", "Restored", "Foreseen", "DeviceWanted"]
    assert kinds[-1] == "CellClosed"


@pytest.mark.heavy
def test_a_wait_for_room_is_told_and_can_be_interrupted(session: SessionUnderTest) -> None:
    """The notebook shows why and the place; after an interrupt the session is offloaded, and the next cell restores."""
    session.offload()
    request, since = session.open("print('ran')")
    session.say(protocol.Waiting(reason="restore", position=2, holder="grace"))
    shown = ""
    while "place 2" not in shown:
        content = session.client.get_iopub_msg(timeout=60)["content"]
        shown = content.get("data", {}).get("text/plain", shown)
    assert "moved away while it was idle" in shown
    session.interrupt()
    reply = session.reply(request)
    assert (reply["status"], reply["ename"], reply["text"]) == ("error", "KeyboardInterrupt", "")
    session.wait_for(protocol.CellClosedReport, since)
    assert session.kinds(since) == ["CellOpened", "CellClosed"]
    assert session.run_restored("print('ran')")["text"] == "ran\n"


def test_interrupted_at_any_moment_it_is_away_or_back(session: SessionUnderTest) -> None:
    """An interrupt and the permission to restore meet in any order: the cell ran, or did not and all is away."""
    for _ in range(8):
        session.offload()
        request, since = session.open("print('ran')")
        for step in random.sample([session.interrupt, lambda: session.say(protocol.RestoreCommand())], 2):
            step()
        reply = session.reply(request)
        ran = reply["text"] == "ran\n"
        session.wait_for(protocol.CellClosedReport, since)
        assert ran <= ("Restored" in session.kinds(since))
        if "Restored" not in session.kinds(since):
            assert reply["ename"] == "KeyboardInterrupt"
        assert session.run_restored("print(right())")["text"] == f"{(4 << 20) - 1}\n"


def test_a_refusal_is_the_cells_error_and_nothing_is_lost(session: SessionUnderTest) -> None:
    """No room for it as things are: torch.OutOfMemoryError with the executor's words, before the first line."""
    session.offload()
    request, since = session.open("print('ran')")
    session.say(protocol.RefusedGrant(reason="quota", message="ada's other notebooks use all of it."))
    reply = session.reply(request)
    assert (reply["ename"], reply["evalue"]) == ("OutOfMemoryError", "ada's other notebooks use all of it.")
    assert reply["text"] == ""
    session.wait_for(protocol.CellClosedReport, since)
    assert session.kinds(since) == ["CellOpened", "CellClosed"]


def restored_for(session: SessionUnderTest, kind: str, content: dict[str, Any]) -> None:
    """Have the memory away, send a request, and return once it has brought the memory back."""
    session.offload()
    since = session.mark
    session.request(kind, content)
    session.wait_for(protocol.CellOpenedReport, since)
    session.say(protocol.RestoreCommand())
    session.wait_for(protocol.CellClosedReport, since)
    assert "Restored" in session.kinds(since)


def test_what_may_touch_objects_restores_first(session: SessionUnderTest) -> None:
    """Completions and widgets wait for the memory like cells; a callback may write to it past torch."""
    restored_for(session, "complete_request", {"code": "kept.su", "cursor_pos": 7})
    restored_for(session, "comm_open", {"comm_id": "c", "target_name": "writes", "data": {}})
    restored_for(session, "comm_msg", {"comm_id": "c", "data": {"value": 0}})


def test_a_completion_whose_restore_is_refused_is_answered(session: SessionUnderTest) -> None:
    """The client hears an error instead of waiting for ever."""
    session.offload()
    since = session.mark
    request = session.request("complete_request", {"code": "kept.su", "cursor_pos": 7})
    session.wait_for(protocol.CellOpenedReport, since)
    session.say(protocol.RefusedGrant(reason="memory", message="full"))
    reply = session.reply(request)
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "OutOfMemoryError", "full")


def test_what_touches_no_objects_leaves_them_away(session: SessionUnderTest) -> None:
    """Requests that every client sends now and then do not bring an idle notebook's memory back."""
    session.offload()
    since = session.mark
    for kind, content in (
        ("kernel_info_request", {}),
        ("history_request", {"hist_access_type": "tail", "n": 1, "output": False, "raw": True}),
        ("comm_info_request", {}),
    ):
        assert session.reply(session.request(kind, content))["status"] == "ok"
    assert session.kinds(since) == []


@pytest.mark.heavy
def test_what_gave_way_in_a_cell_asks_again_until_it_is_back(session: SessionUnderTest) -> None:
    """It can neither go on nor end without its memory: each refusal of it is reported, and a new answer awaited."""
    request, _ = session.give_way("print(right())")
    for _ in range(2):
        since = session.mark
        session.say(protocol.RefusedGrant(reason="memory", message="full"))
        memory = session.wait_for(protocol.NotRestoredReport, since).memory
        assert memory.persistent < 16 * MIB
    since = session.mark
    session.say(protocol.RestoreCommand())
    assert session.reply(request)["text"] == f"{(4 << 20) - 1}\n"
    assert session.kinds(since)[:2] == ["Restored", "DeviceWanted"]


def test_a_new_executor_hears_what_is_away_and_restores_it(session: SessionUnderTest) -> None:
    """The executor goes while a cell waits: its successor is told, and the wait goes on."""
    report = session.offload()
    request, since = session.open("print('ran')")
    session.hang_up()
    hello = session.wait_for(protocol.SessionHello, since)
    assert (hello.offloaded_bytes, hello.cell_open, hello.wanting) == (report.offloaded_bytes, True, False)
    session.say(protocol.RestoreCommand())
    assert session.reply(request)["text"] == "ran\n"
    since = session.mark
    session.hang_up()
    hello = session.wait_for(protocol.SessionHello, since)
    assert hello.offloaded_bytes == 0


def test_a_subshells_cell_and_the_main_one_share_one_restore(session: SessionUnderTest) -> None:
    """Whoever comes first brings it back; the other waits and runs too."""
    subshell = session.control("create_subshell_request", {})["content"]["subshell_id"]
    session.offload()  # a subshell that does nothing is in nobody's way
    since = session.mark
    session.request("execute_request", {"code": "print(int(kept[7]))", "silent": False}, subshell)
    session.wait_for(protocol.CellOpenedReport, since)
    request = session.client.execute("print(int(kept[9]))")
    session.say(protocol.RestoreCommand())
    assert session.reply(request)["text"] == "9\n"
    session.wait_for(protocol.CellClosedReport, since)
    assert session.kinds(since).count("Restored") == 1
    assert session.control("delete_subshell_request", {"subshell_id": subshell})["content"]["status"] == "ok"
