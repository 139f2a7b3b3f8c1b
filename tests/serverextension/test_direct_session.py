"""Pages whose cells do without the relay: what JupyterLab must not notice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel.serverextension.direct_session import MAX_KEPT_BYTES
from tests.serverextension.kernel_page import KernelPage, is_idle
from tests.serverextension.server import PATIENCE, JupyterServer


def start(server: JupyterServer) -> str:
    """Start a kernel; return its id."""
    return str(server.ask("POST", "/api/kernels", {"name": "shared-gpu"}).body["id"])


def relay_of(server: JupyterServer, kernel: str) -> psutil.Process:
    """Return a kernel's process."""
    assert server.service.process is not None
    (relay,) = (
        process
        for process in psutil.Process(server.service.process.pid).children(recursive=True)
        if any(kernel in word for word in process.cmdline())
    )
    return relay


def log(server: JupyterServer) -> str:
    return server.service.log_path.read_text(errors="replace")


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Have a process do nothing."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def model(server: JupyterServer, kernel: str) -> dict[str, Any]:
    return dict(server.ask("GET", f"/api/kernels/{kernel}").body)


def wait_for_state(server: JupyterServer, kernel: str, state: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while (found := model(server, kernel))["execution_state"] != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_a_cell_does_without_the_relay(ada: JupyterServer) -> None:
    """With a relay that does nothing, cells run: the page's messages do not pass it."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        page.run("x = 6")
        with stopped(relay_of(ada, kernel)):
            assert page.run("print(7 * x)") == "42\n"
            assert page.run("1 / 0").endswith("ZeroDivisionError: division by zero")


def test_a_cell_can_ask_its_user(ada: JupyterServer) -> None:
    """`input()` asks the page that sent the cell, and no other one."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page, KernelPage(ada, kernel) as other:
        other.run("pass")  # its connection to the session is there: it hears what is published from now on
        other.messages.clear()
        cell = page.execute("print('hello ' + input('who? '))")
        question = page.wait(lambda message: message["type"] == "input_request")
        assert question["content"]["prompt"] == "who? "
        page.send("stdin", "input_reply", {"value": "ada"}, question["header"])
        assert page.finish(cell) == "hello ada\n"
        other.wait_for_text("hello ada")
        assert {message["channel"] for message in other.messages} == {"iopub"}


def test_widgets_reach_their_page(ada: JupyterServer) -> None:
    """Comms in both directions, with binary buffers."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        page.run(
            "def echo(comm, message):\n"
            "    comm.on_msg(lambda m: comm.send({'got': m['content']['data']}, buffers=[b'x' * 10]))\n"
            "get_ipython().kernel.comm_manager.register_target('echo', echo)"
        )
        comm = {"comm_id": "one", "target_name": "echo", "data": {}}
        page.send("shell", "comm_open", comm)
        page.send("shell", "comm_msg", {"comm_id": "one", "data": 5})
        answer = page.wait(lambda message: message["type"] == "comm_msg")
        assert answer["content"]["data"] == {"got": 5}


def test_the_server_knows_what_the_kernel_does(ada: JupyterServer) -> None:
    """Its model of the kernel is true, for pages and for culling."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        page.run("pass")
        before = wait_for_state(ada, kernel, "idle")
        cell = page.execute("print('up'); input()")
        question = page.wait(lambda message: message["type"] == "input_request")
        assert wait_for_state(ada, kernel, "busy")["connections"] == 1
        page.send("stdin", "input_reply", {"value": ""}, question["header"])
        page.finish(cell)
        assert wait_for_state(ada, kernel, "idle")["last_activity"] > before["last_activity"]
    deadline = time.monotonic() + PATIENCE
    while model(ada, kernel)["connections"]:
        assert time.monotonic() < deadline


def test_a_cell_is_interrupted(ada: JupyterServer) -> None:
    """Once: the cell behind it runs."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        cell = page.execute("import time; print('up', flush=True)\nwhile True: time.sleep(0.01)")
        page.wait_for_text("up")
        assert ada.ask("POST", f"/api/kernels/{kernel}/interrupt").status == 204
        assert "KeyboardInterrupt" in page.finish(cell)
        assert page.run("print('next')") == "next\n"


WAIT = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


def lose(server: JupyterServer, kernel: str, page: KernelPage, *, left: int) -> None:
    """Have *page* vanish; return once the server has noticed, and has *left* others."""
    page.lose()
    deadline = time.monotonic() + PATIENCE
    while model(server, kernel)["connections"] != left:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_page_that_comes_back_misses_nothing(ada: JupyterServer, tmp_path: Path) -> None:
    """It gets what was printed, what was asked, and the reply."""
    kernel = start(ada)
    go = tmp_path / "go"
    page = KernelPage(ada, kernel)
    cell = page.execute(f"print('begun', flush=True)\n{WAIT.format(str(go))}print(input('so? ') + '!')")
    page.wait_for_text("begun")
    lose(ada, kernel, page, left=0)
    go.touch()
    with KernelPage(ada, kernel, name=page.name) as same:
        question = same.wait(lambda message: message["type"] == "input_request")
        same.send("stdin", "input_reply", {"value": "yes"}, question["header"])
        assert same.finish(cell) == "yes!\n"
    assert by_relay(kernel) not in log(ada)


def test_what_is_kept_for_an_absent_page_is_bounded(ada: JupyterServer, tmp_path: Path) -> None:
    """Beyond that the session repeats the newest, with the reply."""
    kernel = start(ada)
    go = tmp_path / "go"
    size = MAX_KEPT_BYTES // 20
    # No stream: of these Jupyter's server drops what is too fast.
    flood = f"for i in range(30): display({{'text/plain': 'x' * {size}}}, raw=True)\nprint('end')"
    with KernelPage(ada, kernel) as other:
        other.run("pass")
        page = KernelPage(ada, kernel)
        cell = page.execute(WAIT.format(str(go)) + flood)
        page.wait(lambda message: message["type"] == "execute_input" and message["about"] == cell)
        lose(ada, kernel, page, left=1)
        go.touch()
        other.wait(lambda message: is_idle(message) and message["about"] == cell)
        with KernelPage(ada, kernel, name=page.name) as same:
            assert same.finish(cell).endswith("end\n")
            assert sum(len(str(message["content"])) for message in same.messages) < 2 * MAX_KEPT_BYTES
            assert same.run("print('next')") == "next\n"


def by_relay(kernel: str) -> str:
    """Return what the log says of a page that does not get the direct way."""
    return f"a page of kernel {kernel} goes by the relay"


def test_a_restart_ends_the_session_alone(ada: JupyterServer) -> None:
    """Pages stay, and no cell gets an error for it; the next cell runs in a new session."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page, KernelPage(ada, kernel) as other:
        page.run("x = 1")
        cell = page.execute("import time; print('up', flush=True); time.sleep(600)")
        page.wait_for_text("up")
        assert ada.ask("POST", f"/api/kernels/{kernel}/restart").status == 200
        assert "NameError" in page.run("x")
        assert other.run("print('too')") == "too\n"
        assert [message for message in page.messages if message["about"] == cell and message["type"] == "error"] == []
    assert by_relay(kernel) not in log(ada)


def test_a_session_that_dies_says_so_in_its_cell(ada: JupyterServer) -> None:
    """And the page goes on with the next one."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        assert "SharedGPUSessionDied" in page.run("import os; os._exit(1)")
        page.wait(lambda message: message["content"].get("execution_state") == "restarting")
        assert page.run("print('next')") == "next\n"
        wait_for_state(ada, kernel, "idle")


@pytest.mark.heavy
def test_a_relay_that_dies_is_not_missed(ada: JupyterServer) -> None:
    """Jupyter starts another one, and the page's cell goes on."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        cell = page.execute("print('up', flush=True); print(input())")
        question = page.wait(lambda message: message["type"] == "input_request")
        before = relay_of(ada, kernel).pid
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while f"the relay of kernel {kernel} was started again" not in log(ada):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        page.send("stdin", "input_reply", {"value": "on"}, question["header"])
        assert page.finish(cell) == "up\non\n"
        assert not any(message["content"].get("execution_state") == "restarting" for message in page.messages)
        wait_for_state(ada, kernel, "idle")


@pytest.mark.heavy
def test_a_page_can_shut_the_kernel_down(ada: JupyterServer) -> None:
    """By a message, which its process gets: the relay ends with the session."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        page.run("pass")
        relay = relay_of(ada, kernel)
        request = page.send("control", "shutdown_request", {"restart": False})
        page.wait(lambda message: message["type"] == "shutdown_reply" and message["about"] == request)
        relay.wait(PATIENCE)
    assert f"a page of kernel {kernel} goes by the relay: the page shuts the kernel down" in log(ada)


def test_a_reloaded_page_gets_what_ran_meanwhile(ada: JupyterServer) -> None:
    """The recorder hears cells that did without the relay."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        page.run("print('told')")
        deadline = time.monotonic() + PATIENCE
        while (
            not (cells := ada.ask("GET", f"/sharedkernel/api/kernels/{kernel}/cells").body["cells"])
            or cells[-1]["open"]
        ):
            assert time.monotonic() < deadline
        assert "told" in json.dumps(cells[-1]["outputs"])
