"""The line in a waiting cell of a real session: when it is shown, what it says, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import nbformat
import pytest
import zmq
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from sharedkernel.session.channels.backpressure import OutputThread
from sharedkernel.session.wait_display import WaitDisplay
from tests.session.harness import PATIENCE, SessionUnderTest
from tests.session.outputs import FakeKernel, outputs_to_one

Message = dict[str, Any]
#: one slow loop with a boundary at each turn
_LOOP = "import sharedkernel\nfor _ in sharedkernel.iterations(range(100)): torch.ones(3)"


@pytest.fixture
def session(session: SessionUnderTest) -> SessionUnderTest:
    """Return a session that is granted the device only when the test says so."""
    session.on_wanted = lambda wanted: None
    return session


class Cell:
    """A cell that runs, and what its session publishes of it."""

    def __init__(self, session: SessionUnderTest, code: str) -> None:
        self._session = session
        #: number of the first message that the executor hears from now on
        self.since = session.mark
        self.request = session.client.execute(code)
        self.messages: list[Message] = []

    def until(self, is_it: Callable[[Message], bool]) -> Message:
        """Return the first message from now on for which *is_it* holds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._session.client.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") == self.request:
                self.messages.append(message)
                if is_it(message):
                    return message

    def until_shown(self, text: str) -> Message:
        """Return the first message from now on that shows *text*."""
        return self.until(lambda message: text in message["content"].get("data", {}).get("text/plain", ""))

    def until_cleared(self) -> None:
        """Return once the cell's output is cleared."""
        self.until(lambda message: message["msg_type"] == "clear_output")

    def end(self) -> str:
        """Return the status of the cell's reply, once it has ended."""
        self.until(lambda message: message["content"].get("execution_state") == "idle")
        while True:
            reply = self._session.client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == self.request:
                return str(reply["content"]["status"])

    @property
    def kinds(self) -> list[str]:
        """The types of the messages until now that a notebook shows."""
        kinds = [str(message["msg_type"]) for message in self.messages]
        return [kind for kind in kinds if kind not in ("status", "execute_input")]

    @property
    def saved(self) -> list[Any]:
        """The outputs that nbclient saves in the notebook."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()])
        client = NotebookClient(notebook, record_timing=False)
        client.clear_before_next_output = False
        for message in self.messages:
            with contextlib.suppress(CellExecutionComplete):
                client.process_message(message, notebook.cells[0], 0)
        outputs: list[Any] = notebook.cells[0].outputs
        return outputs


def waiting(session: SessionUnderTest, cell: Cell, holder: str, **more: Any) -> None:
    """Have *cell* wait behind *holder*, once it wants the device."""
    session.wait_for(protocol.DeviceWantedReport, cell.since)
    session.say(protocol.Waiting(**{"reason": "lane", "position": 2, "holder": holder, **more}))


def shown(session: SessionUnderTest, code: str, holder: str) -> Cell:
    """Return a cell that waits behind *holder*, once it shows that."""
    cell = Cell(session, code)
    waiting(session, cell, holder)
    cell.until_shown(holder)
    return cell


def test_it_is_shown_updated_in_place_and_gone(session: SessionUnderTest) -> None:
    """One display with reason, place, expected wait and a bar, changed where it stands; the notebook has none of it."""
    cell = Cell(session, "torch.ones(3).sum(); None")
    waiting(session, cell, "grace", expected_seconds=50.0)
    first = cell.until_shown("grace")
    moved = cell.until_shown("Expected wait")  # although the executor has nothing new to say
    assert moved["content"]["data"] != first["content"]["data"]
    session.say(protocol.Waiting(reason="lane", position=1, holder="grace", expected_seconds=500.0))
    second = cell.until_shown("place 1 ")
    assert "place 2 in the queue. Expected wait: about" in first["content"]["data"]["text/plain"]
    assert "<progress" in first["content"]["data"]["text/html"]
    assert first["content"]["transient"] == second["content"]["transient"]
    assert len(cell.saved) == 1
    session.grant()
    cell.until_cleared()
    assert cell.end() == "ok"
    assert (cell.kinds[0], cell.kinds[-1]) == ("display_data", "clear_output")
    assert cell.saved == []


def test_a_cell_that_waits_for_the_executor_itself_says_so(session: SessionUnderTest) -> None:
    """Also in place of what was told of the queue; when it is back, that is told anew."""
    cell = shown(session, "torch.ones(3).sum(); None", "mary")
    since, session.is_there = session.mark, False
    session.hang_up()
    session.wait_for(protocol.SessionHello, since)
    cell.until_shown("the executor, which shares the device, is away")
    since, session.is_there = session.mark, True
    session.hang_up()
    session.wait_for(protocol.SessionHello, since)
    session.say(protocol.Waiting(reason="lane", position=1, holder="john"))
    cell.until_shown("john")
    session.grant()
    assert cell.end() == "ok"
    assert cell.saved == []


def test_each_wait_of_a_cell_without_output_shows_a_line_of_its_own(session: SessionUnderTest) -> None:
    """A training that prints nothing waits for many turns, and leaves nothing in its notebook."""
    cell = shown(session, _LOOP, "grace")
    session.page.words[Word.PREEMPT] = 1
    session.grant()
    cell.until_cleared()
    session.wait_for(protocol.GrantReleasedReport, cell.since)
    first = session.wait_for(protocol.DeviceWantedReport, cell.since)
    session.wait_for(protocol.DeviceWantedReport, cell.since, lambda wanted: wanted is not first)
    session.say(protocol.Waiting(reason="lane", position=1, holder="hedy"))
    cell.until_shown("hedy")
    session.on_wanted = session.grant
    session.grant()
    assert cell.end() == "ok"
    assert cell.kinds.count("display_data") == cell.kinds.count("clear_output") == 2
    assert cell.saved == []


def test_an_interrupted_wait_leaves_the_error_alone(session: SessionUnderTest) -> None:
    """As a stock kernel's cell that is interrupted."""
    cell = shown(session, "torch.ones(3)", "grace")
    session.interrupt()
    assert cell.end() == "error"
    assert [output.output_type for output in cell.saved] == ["error"]
    session.wait_for(protocol.DeviceWantWithdrawnReport, cell.since)


def test_what_a_forked_process_prints_meanwhile_stays(session: SessionUnderTest, tmp_path: Path) -> None:
    """As a data loader's worker may; the line makes way for it, too."""
    os.mkfifo(tmp_path / "go")
    session.run(
        # from Python 3.12 on it warns where there are threads, which is an output
        "import os, warnings\nwarnings.filterwarnings('ignore', category=DeprecationWarning)\n"
        "def fork():\n    if not os.fork():\n"
        f"        open({str(tmp_path / 'go')!r}).read(); print('from a process', flush=True); os._exit(0)\n"
    )
    cell = shown(session, "fork(); torch.ones(3); os.wait()[1]", "grace")
    (tmp_path / "go").write_text("now")
    cell.until(lambda message: message["msg_type"] == "stream")
    session.grant()
    assert cell.end() == "ok"
    assert "".join(output.get("text", "") for output in cell.saved) == "from a process\n"
    assert cell.kinds.count("clear_output") == 1


class Published:
    """What a kernel of the test's own publishes, whose cells may show a line."""

    def __init__(self, thread: OutputThread, listener: zmq.Socket[Any]) -> None:
        self._kernel, self._listener = FakeKernel(thread), listener
        #: called before the line, or its end, is sent
        self.before_line: Callable[[], None] = lambda: None
        self.notice = WaitDisplay(self._kernel, self._out_of_turn)
        self.notice.attend(self._kernel)

    @contextlib.contextmanager
    def _out_of_turn(self) -> Iterator[None]:
        self.before_line()
        yield

    def publish(self, kind: str, content: dict[str, Any], cell: str = "a cell") -> None:
        """Publish a message of *cell*, as any thread may."""
        self._kernel.session.send(self._kernel.iopub_socket, kind, content, parent={"msg_id": cell})

    def heard(self) -> list[str]:
        """Return the types of what was published so far."""
        self.publish("all", {}, "no cell")
        kinds: list[str] = []
        while "all" not in kinds:
            kinds.append(self._kernel.read(self._listener)["msg_type"])
        return kinds[:-1]


@pytest.fixture(scope="module")
def published() -> Iterator[Published]:
    with outputs_to_one() as (thread, listener):
        yield Published(thread, listener)


_TEXT = {"name": "stdout", "text": "x"}


@pytest.mark.parametrize(
    "kind", ["stream", "display_data", "update_display_data", "comm_open", "comm_msg", "clear_output"]
)
def test_there_is_no_line_after_the_first_output(published: Published, kind: str) -> None:
    """Whatever it is: a line would have to be cleared, and the output with it."""
    with published.notice.cell():
        published.publish(kind, {})
        published.notice.show()
        published.notice.update(protocol.Waiting(reason="lane", position=1))
        published.notice.show_restored(1, 2)
        published.notice.end()
    assert published.heard() == [kind]


@pytest.mark.parametrize("kind", ["stream", "display_data", "comm_msg", "clear_output"])
def test_the_line_makes_way_for_the_first_output(published: Published, kind: str) -> None:
    """It is cleared before, once, and not shown again."""
    with published.notice.cell():
        published.notice.show()
        published.publish(kind, {})
        published.notice.show(has_executor=False)
        published.notice.end()
        published.notice.show()
    assert published.heard() == ["display_data", "clear_output", kind]


def test_what_is_no_output_of_the_cell_leaves_the_line(published: Published) -> None:
    """Its status and source, and whatever others show."""
    with published.notice.cell():
        published.publish("status", {"execution_state": "busy"})
        published.publish("execute_input", {"code": ""})
        published.publish("stream", _TEXT, "another cell")
        published.notice.show()
        published.publish("stream", _TEXT, "another cell")
        published.notice.end()
    assert published.heard() == ["status", "execute_input", "stream", "display_data", "stream", "clear_output"]


def test_what_is_no_cell_shows_no_line(published: Published) -> None:
    """A widget's message or a silent request: other outputs may stand where its line would be cleared."""
    published.notice.show()
    published.notice.end()
    assert published.heard() == []


def test_an_output_that_comes_while_the_line_is_cleared_waits_for_that(published: Published) -> None:
    """Else it would be cleared, too."""
    other = Thread(target=published.publish, args=("display_data", {}))

    def publish_another() -> None:
        other.start()
        other.join(0.2)  # it may wait for this thread

    with published.notice.cell():
        published.notice.show()
        published.before_line = publish_another
        try:
            published.publish("stream", _TEXT)
        finally:
            published.before_line = lambda: None
        other.join()
    assert sorted(published.heard()[2:]) == ["display_data", "stream"]


def test_outputs_of_many_threads_at_once_are_not_cleared(published: Published) -> None:
    """Whichever of them comes first finds the line cleared, once, before any."""
    for _ in range(50):
        with published.notice.cell():
            published.notice.show()
            threads = [Thread(target=published.publish, args=("stream", _TEXT)) for _ in range(4)]
            for thread in threads:
                thread.start()
            published.notice.end()
            for thread in threads:
                thread.join()
        assert published.heard() == ["display_data", "clear_output", *["stream"] * 4]
