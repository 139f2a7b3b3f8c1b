"""A restart through the relay: the new session begins clean, and what the old one had can still be had back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel.executor.sessions.detached import PATIENCE
from sharedkernel.local_stack import LocalStack
from tests.client.relay.support import TIMEOUT, Notebook, wait_until
from tests.status.documents import to_json
from tests.warm_stack import WarmStack

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")]

_FOR_EVER = "print('begun', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture(scope="module")
def stack(private_jupyter: object) -> Iterator[LocalStack]:
    quotas = {"users": {"mary": {"linger": "10m"}, "grace": {"linger": "10m", "sessions": 1}}}
    with WarmStack(users=["mary", "grace", "linus"], capacity="1GiB", quotas=quotas) as stack:
        yield stack


@pytest.fixture
def notebook(stack: LocalStack, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """Yield a notebook of mary's, or of whose the test names, with a variable."""
    user = getattr(request, "param", "mary")
    notebook = Notebook(stack.gateway_url, stack.token(user))
    notebook.environment["JPY_SESSION_NAME"] = f"/home/{user}/{request.node.name}.ipynb"
    with notebook:
        notebook.run("import os, time, torch\nx = 41")
        yield notebook


def kept(stack: LocalStack, notebook: Notebook) -> list[dict[str, Any]]:
    """Return what status says of the sessions of *notebook* that are there to be had back."""
    name = notebook.environment["JPY_SESSION_NAME"]
    return [entry for entry in to_json(stack.status())["sessions"] if entry["notebook"] == name and entry["lingering"]]


def attach(notebook: Notebook) -> None:
    """Have back what there is, and return once it is there."""
    asking = notebook.client.execute("%shared attach")
    notebook.wait_for_output(asking, "is back, with its variables.")
    assert notebook.client.get_shell_msg(timeout=TIMEOUT)["content"]["status"] == "ok"


@pytest.mark.parametrize("notebook", ["grace"], indirect=True)
def test_what_a_restart_has_left_is_brought_back(stack: LocalStack, notebook: Notebook) -> None:
    """Also to who may have one session; the new one does not speak of it, and its memory is moved away."""
    notebook.run("ones = torch.ones(64 << 18)")
    notebook.restart()
    assert notebook.run("print('x' in globals())").text() == "False\n"
    wait_until(
        lambda: [(entry["state"], entry["restarted"]) for entry in kept(stack, notebook)] == [("offloaded", True)]
    )
    attach(notebook)
    assert notebook.run("print(x + 1, int(ones.sum()) >> 18)").text() == "42 64\n"
    wait_until(lambda: not kept(stack, notebook))


def test_cells_that_were_sent_at_once_run_in_the_session_that_is_back(notebook: Notebook) -> None:
    """As *Run All* sends them, in their order, each once."""
    notebook.restart()
    cells = ["%shared attach", "print(x + 1)", "x += 1", "print(x + 1)", "print('x' in globals())"]
    sent = [notebook.client.execute(cell) for cell in cells]
    texts = [notebook.wait(each).text() for each in sent]
    assert "The earlier session takes the place of this one" in texts[0]
    assert texts[1:] == ["42\n", "", "43\n", "True\n"]


def test_a_running_cell_is_interrupted_and_its_variables_stay(stack: LocalStack, notebook: Notebook) -> None:
    """As by the button for that."""
    running = notebook.client.execute(_FOR_EVER)
    notebook.wait_for_output(running, "begun")
    notebook.restart()
    wait_until(lambda: [entry["state"] in ("idle", "offloaded") for entry in kept(stack, notebook)] == [True])
    attach(notebook)
    assert notebook.run("print(x + 1)").text() == "42\n"


def test_of_several_restarts_the_last_one_counts(stack: LocalStack, notebook: Notebook) -> None:
    """Of those after which something was run."""
    notebook.restart()
    notebook.run("x = 1")
    (first,) = kept(stack, notebook)
    notebook.restart()
    wait_until(lambda: [entry["id"] != first["id"] for entry in kept(stack, notebook)] == [True])
    (second,) = kept(stack, notebook)
    notebook.restart()
    notebook.run("1")
    assert [entry["id"] for entry in kept(stack, notebook)] == [second["id"]]
    attach(notebook)
    assert notebook.run("print(x + 1)").text() == "2\n"


def test_what_runs_on_or_keeps_memory_ends_soon(stack: LocalStack, notebook: Notebook) -> None:
    """A restart is to free what the session has."""
    running = notebook.client.execute(f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{_FOR_EVER}")
    notebook.wait_for_output(running, "begun")
    notebook.restart()
    began = time.monotonic()
    assert len(kept(stack, notebook)) == 1
    wait_until(lambda: not kept(stack, notebook))
    # the promise, and what a busy machine takes
    assert PATIENCE / 2 < time.monotonic() - began < 3 * PATIENCE


#: what a restart must end at once, and how it is named
_OWN = {
    "thread": (
        "import threading\nthreading.Thread(target=lambda: time.sleep(600), name='mine').start()",
        "thread mine",
    ),
    "timer": ("import threading\nthreading.Timer(600, print).start()", "thread Thread-"),
    # one that the interrupt before does not end
    "program": (
        "import subprocess\nprogram = subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 600; true'])",
        "program sh",
    ),
    "port": ("import socket\nport = socket.create_server(('127.0.0.1', 0))\nprint(port.getsockname()[1])", "port "),
    "lock": ("import fcntl\nlock = open('of.lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)", "lock on of.lock"),
    "database": (
        "import sqlite3\nbase = sqlite3.connect('of.db', isolation_level=None)\n_ = base.execute('begin exclusive')",
        "lock on of.db",
    ),
}
#: what libraries leave, which only waits
_LEFT = """if True:
    import asyncio, concurrent.futures, fcntl, tempfile
    import matplotlib.pyplot as plt
    from tqdm.auto import tqdm
    plt.plot([1, 2]); plt.show()
    for _ in tqdm(range(3)): pass
    await asyncio.to_thread(time.sleep, 0)
    pool = concurrent.futures.ThreadPoolExecutor(); pool.submit(print, 1).result()
    loader = torch.utils.data.DataLoader(torch.arange(4), num_workers=1)
    for _ in loader: pass
    with tempfile.TemporaryFile() as file: fcntl.flock(file, fcntl.LOCK_EX)
"""


def test_what_holds_or_runs_something_is_not_kept(stack: LocalStack, notebook: Notebook, tmp_path: Path) -> None:
    """It is gone when the next session starts, its exit handlers have run, and a shut-down one says what it has."""
    notebook.run(f"os.chdir({str(tmp_path)!r})")
    exits = "import atexit\natexit.register(lambda: open('exits', 'a').write('1'))"
    assert notebook.run(f"{_OWN['program'][0]}\n{exits}").status == "ok"
    pid = int(notebook.run("print(os.getpid())").text())
    programs = psutil.Process(pid).children()
    notebook.restart()
    assert not psutil.pid_exists(pid)
    assert not any(program.is_running() for program in programs)
    assert (tmp_path / "exits").read_text() == "1"
    assert notebook.run("print('x' in globals())").text() == "False\n"
    assert kept(stack, notebook) == []
    notebook.run(f"import os, time\nos.chdir({str(tmp_path)!r})")
    for code, _ in _OWN.values():
        assert notebook.run(code).status == "ok"
    notebook.manager.shutdown_kernel()

    def has_all() -> bool:
        told = [each for entry in kept(stack, notebook) for each in entry["still_has"]]
        return all(any(name in each for each in told) for _, name in _OWN.values())

    wait_until(has_all)


def test_what_libraries_leave_keeps_nothing_from_being_brought_back(stack: LocalStack, notebook: Notebook) -> None:
    """Their threads and helpers only wait for work."""
    assert notebook.run(_LEFT).status == "ok"
    notebook.restart()
    notebook.run("1")
    assert [list(entry["still_has"]) for entry in kept(stack, notebook)] == [[]]
    attach(notebook)
    assert notebook.run("print(x + 1)").text() == "42\n"


@pytest.mark.parametrize("notebook", ["linus"], indirect=True)
def test_whose_sessions_do_not_stay_loses_them(stack: LocalStack, notebook: Notebook) -> None:
    """As after a shutdown."""
    notebook.restart()
    assert kept(stack, notebook) == []
    assert "NameError" in notebook.run("x").error
