"""Pages of a Jupyter server whose kernels are relays: what JupyterLab must not notice."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel.local_stack import LocalStack
from tests.asking import ask
from tests.client.extension.conftest import StartServer
from tests.client.extension.kernel_page import KernelPage, is_idle
from tests.client.extension.server import JupyterServer
from tests.client.relay.support import wait_until


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


def kill_relay(server: JupyterServer, kernel: str) -> None:
    """Kill a kernel's process; return once the server has started the next one."""
    killed = relay_of(server, kernel)
    killed.kill()

    def is_there() -> bool:
        with contextlib.suppress(ValueError, psutil.Error):  # there is none, or it is gone already
            return relay_of(server, kernel) != killed
        return False

    wait_until(is_there)


def log(server: JupyterServer) -> str:
    return server.service.log_path.read_text(errors="replace")


def model(server: JupyterServer, kernel: str) -> dict[str, Any]:
    return dict(server.ask("GET", f"/api/kernels/{kernel}").body)


def wait_for_state(server: JupyterServer, kernel: str, state: str) -> dict[str, Any]:
    wait_until(lambda: model(server, kernel)["execution_state"] == state)
    return model(server, kernel)


def test_pages_reach_their_session_by_the_relay_alone(stack: LocalStack, ada: JupyterServer) -> None:
    """However many they are, the gateway has one connection for them."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page, KernelPage(ada, kernel) as other:
        assert page.run("x = 6; print(x)") == "6\n"
        assert other.run("print(7 * x)") == "42\n"
        assert page.run("1 / 0").endswith("ZeroDivisionError: division by zero")
        listed = ask(f"{stack.gateway_url}/api/kernels", stack.token("ada")).body
        assert [session["connections"] for session in listed] == [1]


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
    wait_until(lambda: not model(ada, kernel)["connections"])


WAIT = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


def lose(server: JupyterServer, kernel: str, page: KernelPage, *, left: int) -> None:
    """Have *page* vanish; return once the server has noticed, and has *left* others."""
    page.lose()
    wait_until(lambda: model(server, kernel)["connections"] == left)


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


#: prints numbers until a file is there, and asks; others say how far it is, and stop it for a while and that it is
_COUNTING = """
import itertools, pathlib, time
printed, enough, pause, paused = map(pathlib.Path.joinpath, 4 * [pathlib.Path({directory!r})], {files})
for number in itertools.count():
    while pause.exists():
        paused.touch()
        time.sleep(0.01)
    print(number, flush=True)
    printed.write_text(str(number))
    if enough.exists(): break
    time.sleep(0.01)
print(input())
"""
_FILES = ("printed", "enough", "pause", "paused")


@pytest.fixture(scope="module")
def steady(start_server: StartServer) -> JupyterServer:
    """Start a server of ada's that starts a relay again soon, and where it was, however young it is."""
    options = "random_ports_until_alive=False", "time_to_dead=0.2"
    return start_server("ada", *(f"--AsyncIOLoopKernelRestarter.{option}" for option in options))


def recorded(server: JupyterServer, kernel: str) -> list[str]:
    """Return the texts that the server has of the last cell's outputs, for a page that is loaded again."""
    cells = server.ask("GET", f"/sharedkernel/api/kernels/{kernel}/cells").body["cells"]
    return [output["text"] for output in cells[-1]["outputs"]]


@pytest.mark.heavy
@pytest.mark.parametrize(("ends", "deaths"), [("meanwhile", 1), ("later", 2)])
def test_a_relay_that_dies_is_not_missed(steady: JupyterServer, tmp_path: Path, ends: str, deaths: int) -> None:
    """Jupyter starts another one, and the cell's page gets the rest of its outputs, its question and its reply.

    It dies while nothing is printed: what a relay was sending when it was killed, some may have got.
    """
    kernel = start(steady)
    printed, enough, pause, paused = (tmp_path / name for name in _FILES)
    with KernelPage(steady, kernel) as page, KernelPage(steady, kernel) as other:
        other.run("pass")
        cell = page.execute(_COUNTING.format(directory=str(tmp_path), files=_FILES))
        page.wait_for_text("20\n")
        pause.touch()
        wait_until(paused.exists)
        last = printed.read_text()
        for each in (page, other):
            each.wait(lambda message: last in str(message["content"].get("text", "")).split())
        wait_until(lambda: last in "".join(recorded(steady, kernel)).split())
        for _ in range(deaths):
            kill_relay(steady, kernel)
        pause.unlink(missing_ok=True)
        before = int(printed.read_text() or 0)
        wait_until(lambda: int(printed.read_text() or 0) > before + 20)
        if ends == "meanwhile":
            enough.touch()
        wait_until(lambda: f"the relay of kernel {kernel} was started again" in log(steady))
        enough.touch()
        question = page.wait(lambda message: message["type"] == "input_request")
        page.send("stdin", "input_reply", {"value": "on"}, question["header"])
        told = [int(word) for word in page.finish(cell).removesuffix("on\n").split()]
        missing = sorted(set(range(int(printed.read_text()) + 1)) - set(told))
        repeated = sorted(number for number, times in Counter(told).items() if times > 1)
        assert (missing, repeated) == ([], [])
        assert told == sorted(told)
        # nor does a page miss anything that is loaded again
        (text,) = recorded(steady, kernel)
        assert text.removesuffix("on\n").split() == list(map(str, told))
        other.wait(lambda message: is_idle(message) and message["about"] == cell)
        assert other.printed(cell).endswith("on\n")
        for each in (page, other):
            assert not any(message["content"].get("execution_state") == "restarting" for message in each.messages)
        wait_for_state(steady, kernel, "idle")
        assert page.run("print(number)") == f"{told[-1]}\n"
    steady.ask("DELETE", f"/api/kernels/{kernel}")


@pytest.mark.heavy
def test_relays_that_die_around_an_outage_repeat_nothing(stack: LocalStack, steady: JupyterServer) -> None:
    """What the second relay says itself hides nothing of what the page has heard of the session.

    With the old framing Jupyter's server checks signatures, and reads no more from a relay that repeats a message.
    """
    kernel = start(steady)
    with KernelPage(steady, kernel, protocol=None) as page:
        page.run("x = 41")
        stack.gateway.kill()
        try:
            kill_relay(steady, kernel)
            for _ in range(8):
                assert "SharedGPUUnreachable" in page.run("x + 1")
        finally:
            stack.gateway.start()
            stack.gateway.wait_until_ready()
        kill_relay(steady, kernel)
        assert page.run("print(x + 1)") == "42\n"
        # a gateway numbers its own messages anew for each connection
        ids = [(message["header"]["msg_id"], message["header"]["date"]) for message in page.messages]
        assert sorted(ids) == sorted(set(ids))
    assert "Duplicate Signature" not in log(steady)
    steady.ask("DELETE", f"/api/kernels/{kernel}")


@pytest.mark.heavy
def test_a_relay_that_dies_with_its_session_is_said(steady: JupyterServer) -> None:
    """As of any kernel: nothing else would end what the page waits for."""
    kernel = start(steady)
    with KernelPage(steady, kernel) as page:
        pid = int(page.run("import os; print(os.getpid())"))
        page.execute("print('up', flush=True)\nimport time; time.sleep(600)")
        page.wait_for_text("up")
        relay_of(steady, kernel).kill()
        os.kill(pid, signal.SIGKILL)
        page.wait(lambda message: message["content"].get("execution_state") == "restarting")
    with KernelPage(steady, kernel, name=page.name) as same:
        assert same.run("print('next')") == "next\n"
    steady.ask("DELETE", f"/api/kernels/{kernel}")
