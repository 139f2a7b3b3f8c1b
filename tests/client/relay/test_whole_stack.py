"""The relay with our own gateway and executor behind it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.gateway.kernels.detached import _CELL_INTERVAL
from sharedkernel.local_stack import LocalStack
from sharedkernel.services import Service
from tests.asking import ask
from tests.cli.support import entries
from tests.client.relay.support import TIMEOUT, Line, Notebook, Outcome, wait_until
from tests.processes import belongs_to
from tests.status.documents import to_json
from tests.warm_stack import WarmStack

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")]


@pytest.fixture(scope="module")
def whole_stack(private_jupyter: object) -> Iterator[LocalStack]:
    """Start an executor and a gateway for two users; the sessions of one linger."""
    with WarmStack(users=["ada", "mary"], capacity="1GiB", quotas={"users": {"mary": {"linger": "10m"}}}) as stack:
        yield stack


@pytest.fixture
def stack(whole_stack: LocalStack) -> LocalStack:
    """Return the stack, with both of its services, and without a session of ada's: the last test's may still end."""
    for service in (whole_stack.executor, whole_stack.gateway):
        if not service.running:
            service.start()
    for service in (whole_stack.executor, whole_stack.gateway):
        service.wait_until_ready()
    wait_until(lambda: not entries(whole_stack, "ada"))
    return whole_stack


@pytest.fixture
def notebook(stack: LocalStack) -> Iterator[Notebook]:
    """Yield a notebook of ada's."""
    with Notebook(stack.gateway_url, stack.token("ada")) as notebook:
        yield notebook


def test_the_end_of_a_session_is_said_by_the_next_relay_too(
    stack: LocalStack, notebook: Notebook, tmp_path: Path
) -> None:
    """It knows nothing of the cell that another relay has sent, so it says that all that runs has no outcome."""
    go_on = tmp_path / "go on"
    code = f"print('on', flush=True)\n{_UNTIL_THERE.format(path=str(go_on))}\nprint('again', flush=True)\nwhile True: 1"
    cell = notebook.client.execute(code)
    notebook.wait_for_output(cell, "on")
    _replace_relay(notebook)
    go_on.touch()
    notebook.wait_for_output(cell, "again")
    _end_all(stack, "ada", by="ada")
    _wait_for_state(notebook, "restarting")
    assert notebook.run("print('next')").text() == "next\n"


def test_relays_that_lose_their_gateway_as_well_repeat_nothing(
    stack: LocalStack, notebook: Notebook, tmp_path: Path
) -> None:
    """Neither what the client has of the relay before, whose gateway ended with it, so that nobody knows what that is.

    Nor where the next relay has heard nothing of the session yet. jupyter_client refuses to have a reply twice.
    """
    notebook.run("print('before')")
    stack.gateway.kill()
    _kill_relay(notebook)
    stack.gateway.start()
    stack.gateway.wait_until_ready()
    notebook.manager.restart_kernel(now=True)
    assert notebook.run("print('next')").text() == "next\n"
    go_on = tmp_path / "go on"
    cell = notebook.client.execute(f"print('on', flush=True)\n{_UNTIL_THERE.format(path=str(go_on))}\nprint('done')")
    notebook.wait_for_output(cell, "on")
    _replace_relay(notebook)
    _wait_for_state(notebook, "busy")  # it has joined
    _restart_gateway(stack)
    go_on.touch()
    outcome = notebook.wait(cell)
    assert (outcome.status, outcome.text()) == ("ok", "done\n")


def test_a_cell_that_waited_runs_after_the_end_of_a_session_that_a_relay_has_taken_over(stack: LocalStack) -> None:
    """The cells of the relay before are over once one of its own is, so no restart is published for them."""
    with Line(stack.port) as line, Notebook(line.url, stack.token("mary")) as notebook:
        notebook.run("x = 1")
        _replace_relay(notebook)
        assert notebook.run("print(x)").text() == "1\n"
        line.cut(notebook)
        waiting = notebook.client.execute("print('x' in globals())")
        _end_all(stack, "mary", by="ada")
        line.mend()
        states, text = [], ""
        while "False" not in text:
            message = notebook.client.get_iopub_msg(timeout=TIMEOUT)
            states.append(message["content"].get("execution_state"))
            if message["parent_header"].get("msg_id") == waiting:
                text += message["content"].get("text", "")
        assert "restarting" not in states


def test_a_cell_that_waits_behind_a_lost_one_of_the_relay_before_fails(stack: LocalStack) -> None:
    """At the restart that is published a client gives up all its cells, so that this one would run unseen."""
    with Line(stack.port) as line, Notebook(line.url, stack.token("mary")) as notebook:
        _run_on(notebook)
        _replace_relay(notebook)
        _wait_for_state(notebook, "busy")  # the relay has joined, and knows that a cell runs
        line.cut(notebook)
        waiting = notebook.client.execute("print('unseen')")
        _end_all(stack, "mary", by="ada")
        line.mend()
        outcome = notebook.wait(waiting)
        assert outcome.error.startswith("SharedGPUSessionDied: This session was ended by ada")
        assert [error["ename"] for error in outcome.of_type("error")] == ["SharedGPUSessionDied"]
        _wait_for_state(notebook, "restarting")


def test_an_output_that_is_too_long_for_a_websocket_breaks_none(notebook: Notebook) -> None:
    """The longest that the gateway passes on arrives; a sentence says that a longer one is not shown."""
    notebook.run("x = 1")
    (long,) = notebook.run("display({'text/plain': 'y' * (95 << 20)}, raw=True)").of_type("display_data")
    assert len(long["data"]["text/plain"]) == 95 << 20
    longer = notebook.run("display({'text/plain': 'y' * (105 << 20)}, raw=True)")
    assert longer.text("stderr") == (
        "105 MiB of output are not shown: the gateway passes on 96.0 MiB at a time. Show less, or write it to a file.\n"
    )
    assert longer.status == "ok"
    assert notebook.run("print(x)").text() == "1\n"


def test_a_session_that_somebody_ends_is_no_crash(stack: LocalStack) -> None:
    """Its page is not told that the kernel died, none takes its place, and the next cell says who ended it.

    A cell that runs has an error that says so, and no output besides. Where a computer was asleep meanwhile, its relay
    comes back and finds none, also after a restart.
    """
    with Line(stack.port) as line, Notebook(line.url, stack.token("mary")) as notebook:
        notebook.run("x = 1")
        _end_all(stack, "mary", by="ada")
        time.sleep(2)  # in which Jupyter would have started another kernel
        assert notebook.manager.is_alive()
        assert not _live(stack, "mary")
        outcome = notebook.run("print('x' in globals())")
        assert outcome.reply["content"]["status"] == "ok"
        assert outcome.text().endswith("False\n")
        assert "ago: This session was ended by ada; its variables are gone." in outcome.text("stderr")
        assert notebook.run("print(1)").text("stderr") == ""
        running = _run_on(notebook)
        _end_all(stack, "mary", by="ada")
        outcome = notebook.wait(running)
        assert outcome.error.startswith("SharedGPUSessionDied: This session was ended by ada")
        assert _times_told(outcome, "This session was ended by ada") == 1
        notebook.run("x = 1")
        line.cut(notebook)
        _end_all(stack, "mary", by="ada")
        line.mend()
        time.sleep(2)  # as above
        assert notebook.manager.is_alive()
        assert not _live(stack, "mary")
        outcome = notebook.run("print('x' in globals())")
        assert outcome.text("stdout") == "False\n"
        farewell = "While the gateway was out of reach: This session was ended by ada; its variables are gone."
        assert farewell in outcome.text("stderr")
        line.cut(notebook)
        _end_all(stack, "mary", by="ada")
        _restart_gateway(stack)
        line.mend()
        outcome = notebook.run("print('x' in globals())")
        assert outcome.text() == "False\n"
        assert "This session was ended by ada; its variables are gone." in outcome.text("stderr")


def test_cells_that_waited_run_after_a_session_that_was_ended_meanwhile(stack: LocalStack) -> None:
    """None of them has begun there; the one that ran there says who has ended it, and interrupts for it are over."""
    with Line(stack.port) as line, Notebook(line.url, stack.token("mary")) as notebook:
        running = _run_on(notebook)
        line.cut(notebook)
        interrupt = notebook.client.session.msg("interrupt_request", {})
        notebook.client.control_channel.send(interrupt)
        notebook.wait_for_output(running, "is away")
        waiting = notebook.client.execute("print('begun' in globals())")
        last = notebook.client.execute("print('last')")
        _end_all(stack, "mary", by="ada")
        line.mend()
        assert notebook.wait(running).error.startswith("SharedGPUSessionDied: This session was ended by ada")
        outcome = notebook.wait(waiting)
        assert (outcome.status, outcome.text()) == ("ok", "False\n")
        assert _times_told(outcome, "This session was ended by ada; its variables are gone.") == 1
        outcome = notebook.wait(last)
        assert (outcome.text(), outcome.text("stderr")) == ("last\n", "")


def _kill_relay(notebook: Notebook) -> None:
    os.kill(notebook.pid, signal.SIGKILL)
    wait_until(lambda: not notebook.manager.is_alive())


def _replace_relay(notebook: Notebook) -> None:
    _kill_relay(notebook)
    notebook.manager.restart_kernel(now=True)


def _restart_gateway(stack: LocalStack) -> None:
    stack.gateway.kill()
    stack.gateway.start()
    stack.gateway.wait_until_ready()


def _wait_for_state(notebook: Notebook, state: str) -> None:
    while notebook.client.get_iopub_msg(timeout=TIMEOUT)["content"].get("execution_state") != state:
        pass


def _run_on(notebook: Notebook) -> str:
    """Run a cell that does not end by itself; return its message id once it runs."""
    message_id = notebook.client.execute("begun = True; print('on', flush=True)\nimport time; time.sleep(1000)")
    notebook.wait_for_output(message_id, "on")
    return message_id


def _times_told(outcome: Outcome, sentence: str) -> int:
    contents = [message["content"] for message in outcome.messages]
    return sum(sentence in content.get("text", content.get("evalue", "")) for content in contents)


def _live(stack: LocalStack, user: str) -> list[str]:
    return [session["id"] for session in entries(stack, user) if not session["lingering"]]


def _end_all(stack: LocalStack, user: str, *, by: str) -> None:
    for session in _live(stack, user):
        assert ask(f"{stack.gateway_url}/api/kernels/{session}", stack.token(by), "DELETE").status == 204
    wait_until(lambda: not _live(stack, user))


#: waits until a file is there
_UNTIL_THERE = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)"


def test_a_cell_that_an_attach_overtakes_says_so(stack: LocalStack, tmp_path: Path) -> None:
    """It was sent when the earlier session was on its way already, and ends with the one that it was sent to."""
    first, second = (Notebook(stack.gateway_url, stack.token("mary")) for _ in range(2))
    for notebook in (first, second):
        notebook.environment["JPY_SESSION_NAME"] = "/home/mary/overtaken.ipynb"
    with first:
        assert first.run("%shared attach").text().startswith("There is no earlier session of this notebook")
        first.run("x = 41")
    with second:
        go_on = tmp_path / "go on"
        asking = second.client.execute(f"%shared attach\n{_UNTIL_THERE.format(path=str(go_on))}")
        second.wait_for_output(asking, "takes the place of this one")
        with paused(stack.executor):
            go_on.touch()
            assert second.wait(asking).status == "ok"
            # By then the gateway has seen that the cell has ended, and asked the executor, which does not answer yet.
            time.sleep(2 * _CELL_INTERVAL)
            for _ in range(2):
                assert ask(f"{stack.gateway_url}/healthz", None).status == 200
            running = second.client.execute(f"print('begun')\n{_UNTIL_THERE.format(path=str(tmp_path / 'never'))}")
            second.wait_for_output(running, "begun")
        error = second.wait(running).error
        assert error.startswith("SharedGPUSessionReplaced: the earlier session took the place of the one")
        assert second.run("print(x + 1)").text() == "42\n"


@contextlib.contextmanager
def paused(service: Service) -> Iterator[None]:
    """Stop *service*'s process meanwhile."""
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.process.send_signal(signal.SIGCONT)


def test_a_crash_is_explained_and_survived(notebook: Notebook) -> None:
    """The cell says what ended its session; the cell after it has a new one at once."""
    outcome = notebook.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert outcome.error.startswith("SharedGPUSessionDied: Your session was ended by SIGSEGV")
    assert _times_told(outcome, "Your session was ended by SIGSEGV") == 1
    assert notebook.run("print('again')").text().endswith("again\n")


#: prints numbers until told how far; another file says how far it is
_COUNTING = """
import itertools, pathlib, time
directory = pathlib.Path({directory!r})
for number in itertools.count():
    print(number, flush=True)
    (directory / "printed").write_text(str(number))
    if (directory / "enough").exists(): break
    time.sleep(0.002)
"""


@pytest.mark.parametrize("ends", ["later", "meanwhile"])
def test_what_a_cell_prints_while_there_is_no_gateway_is_told_afterwards(
    stack: LocalStack, notebook: Notebook, tmp_path: Path, ends: str
) -> None:
    """Each line once and in order, and the cell's outcome, also when it ends before there is another gateway."""

    def printed() -> int:
        return int((tmp_path / "printed").read_text() or 0)

    message_id = notebook.client.execute(_COUNTING.format(directory=str(tmp_path)))
    lines = [*notebook.published(message_id, until=lambda message: "20\n" in message["content"].get("text", ""))]
    stack.gateway.kill()
    before = printed()
    wait_until(lambda: printed() > before + 50)
    if ends == "meanwhile":
        (tmp_path / "enough").touch()
    stack.gateway.start()
    stack.gateway.wait_until_ready()
    (tmp_path / "enough").touch()
    outcome = notebook.wait(message_id)
    assert outcome.status == "ok"
    told = "".join(message["content"].get("text", "") for message in lines) + outcome.text()
    assert told.split() == [str(number) for number in range(printed() + 1)]


def test_a_reboot_loses_sessions_and_says_so(stack: LocalStack, notebook: Notebook) -> None:
    """Nothing stale is shown or left; the waiting cell says that its session is gone, and the next one begins clean."""
    notebook.run("weights = 1")
    message_id = _run_on(notebook)
    everything = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended
            if belongs_to(process, stack.runtime_directory):
                everything.append(process)
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has gone with one that was killed before it
            process.kill()
    for service in (stack.gateway, stack.executor):
        service.kill()
        service.start()
    for service in (stack.executor, stack.gateway):
        service.wait_until_ready()
    assert to_json(stack.status())["sessions"] == []
    assert notebook.wait(message_id).error.startswith("SharedGPUSessionGone: the session is no longer on the gateway")
    outcome = notebook.run("weights")
    assert "NameError" in outcome.error
    assert "The session before is no longer on the gateway, and its variables are gone" in outcome.text("stderr")
    names = {path.name[:12] for path in (stack.runtime_directory / "s").rglob("*") if not path.is_dir()}
    assert len(names) <= 2, "more than the new session and a spare have files"
