"""``ports`` against a real gateway: what a program serves on the host is here, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import COMMAND, run, shared_kernel

_SERVE = """if True:
    import http.server, threading
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port)
"""


@pytest.mark.heavy
def test_a_port_is_listed_and_forwarded_until_ctrl_c(stack: LocalStack) -> None:
    """At another number where its own is taken, as on this machine, which is the host; or at the one that is named."""
    assert run(stack, "hedy", "ports").stdout == "None of your programs listens on a port of the host.\n"
    with shared_kernel(stack, "hedy", "board.ipynb") as notebook:
        port = int(notebook.run(_SERVE).text())
        assert run(stack, "hedy", "ports").stdout.splitlines()[-1].split() == [str(port), "notebook", "board.ipynb"]
        (entry,) = json.loads(run(stack, "hedy", "ports", "--json").stdout)["ports"]
        assert (entry["port"], entry["program"]) == (port, "notebook")
        with socket.create_server(("127.0.0.1", 0)) as free:
            number = free.getsockname()[1]
        for options, local in (([], None), (["--local-port", str(number)], number)):
            command = [*COMMAND, "ports", str(port), *options]
            environment = os.environ | stack.client_environment("hedy")
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                line = process.stdout.readline()
                url = line.split(" is ")[1].split()[0]
                assert line.startswith(f"port {port} of the host (notebook) is http://127.0.0.1:{local or ''}")
                assert (f"(port {port} is taken here)" in line) is (local is None)
                with urllib.request.urlopen(url, timeout=60) as answer:
                    assert b"Directory listing" in answer.read()
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                assert process.stdout.read().strip() == ""


@pytest.mark.heavy
def test_what_cannot_be_forwarded_is_said_in_a_sentence(stack: LocalStack) -> None:
    """Where a local port is taken, and where a gateway is away."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run(stack, "hedy", "ports", "6006", "--local-port", str(taken.getsockname()[1]))
        assert refused.returncode == 1
        assert "name another" in refused.stderr
        closed = taken.getsockname()[1]
    away = run(stack, "hedy", "ports", "6006", SHAREDKERNEL_GATEWAY_URL=f"http://127.0.0.1:{closed}")
    assert away.returncode == 1
    assert "no gateway answers" in away.stderr
