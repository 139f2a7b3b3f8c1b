"""The first milliseconds of a relay: it listens before it is there."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sharedkernel.client.connect import write_kernelspec
from sharedkernel.client.relay import start
from sharedkernel.local_stack import free_port
from tests.client.relay.support import TIMEOUT, GatewayProcess, Notebook

#: stands in for a module that is still being imported: it says how it was started, and waits until its input ends
_MODULE = "import sys; print(sys.argv[1:], flush=True); sys.stdin.read()"


@contextmanager
def started(directory: Path, connection: object) -> Iterator[str]:
    """Give the arguments of the module that `start.py` runs with a connection file, while that module waits."""
    (directory / "module_that_waits.py").write_text(_MODULE)
    file = directory / "connection.json"
    file.write_text(connection if isinstance(connection, str) else json.dumps(connection, indent=1))
    command = [sys.executable, "-P", "-S", start.__file__, "module_that_waits", "-f", str(file), "--name", "x"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(directory)}
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
    finally:
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0


def connection_info(**changed: object) -> dict[str, object]:
    """Return what a client writes for its kernel."""
    ports = {f"{name}_port": free_port() for name in start.SOCKETS}
    return {**ports, "ip": "127.0.0.1", "key": "a-key", "transport": "tcp", "kernel_name": "x"} | changed


def test_a_client_can_connect_before_the_relay_is_imported(tmp_path: Path) -> None:
    """To each of the five sockets; which they are, the relay is told."""
    info = connection_info()
    with started(tmp_path, info) as arguments, ExitStack() as stack:
        assert "'--name', 'x', '--listening', '" in arguments
        assert arguments.count(",") == 5 + 4
        for name in start.SOCKETS:
            address = ("127.0.0.1", int(str(info[f"{name}_port"])))
            stack.enter_context(socket.create_connection(address, timeout=TIMEOUT))


@pytest.mark.parametrize(
    "connection",
    [
        {"transport": "ipc", "ip": "/nowhere/kernel"}, {"ip": "no.such.host.invalid"}, {"hb_port": -1}, "", None,
    ],
)  # fmt: skip
def test_what_cannot_be_listened_at_is_left_to_the_relay(tmp_path: Path, connection: object) -> None:
    """Which then does it by zmq, or says what is wrong; no port stays in use until then."""
    info = connection_info(**connection) if isinstance(connection, dict) else connection
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if info is None:
            info = connection_info(hb_port=taken.getsockname()[1])
        with started(tmp_path, info) as arguments:
            assert "--listening" not in arguments
            if isinstance(info, dict) and info["transport"] == "tcp":
                socket.create_server(("127.0.0.1", int(str(info["shell_port"])))).close()


def test_a_relay_imports_nothing_heavy() -> None:
    """Whoever needs one of them there makes every notebook start later."""
    heavy = {"torch", "numpy", "IPython", "ipykernel", "msgspec", "traitlets", "jupyter_client", "jupyter_core"}
    modules = ", ".join(f"sharedkernel.client.relay.{name}" for name in ("app", "relay"))
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=TIMEOUT).split()
    assert (heavy | {"tornado", "argparse"}).isdisjoint(loaded)


def test_an_earlier_kernelspec_works_as_before(
    contract_gateway: GatewayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the module itself, with options that `jupyter run` adds, and no socket listens yet."""
    kernel = tmp_path / "kernels" / "earlier"
    write_kernelspec(kernel)
    spec = json.loads((kernel / "kernel.json").read_text())
    spec["argv"] = [sys.executable, "-m", "sharedkernel.relay", "-f", "{connection_file}", "notebook.py"]
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with Notebook(contract_gateway.url, contract_gateway.token, name="earlier") as notebook:
        assert notebook.run("print('hello')").text() == "hello\n"
