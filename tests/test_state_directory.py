"""What outlives a reboot: the services started by hand, with nothing named on their command lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.local_stack import free_port
from sharedkernel.paths import SHELF_DIRECTORY, make_state_directory, shelf_directory
from tests import asking
from tests.asking import Answer
from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until

TOKEN = "a-token-that-nobody-can-guess"


@contextmanager
def service(directory: Path, *arguments: str) -> Iterator[None]:
    """Run a command in an environment of its own until SIGTERM."""
    places = {"XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state", "JUPYTER_CONFIG_DIR": "config"}
    environment = os.environ | {name: str(directory / place) for name, place in places.items()}
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=log, stderr=log, env=environment | {"JUPYTER_TOKEN": TOKEN}
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def ask(port: int, path: str, **options: Any) -> Answer:
    """Return the answer of the gateway; 0 if there is none."""
    try:
        return asking.ask(f"http://127.0.0.1:{port}{path}", TOKEN, **options)
    except OSError:
        return Answer(0, None)


@pytest.mark.heavy
def test_owners_and_audit_log_outlive_the_runtime_directory(scratch: Path) -> None:
    """They are in the state directory; sockets are not."""
    runtime, state = scratch / "run" / "sharedkernel", scratch / "state" / "sharedkernel"
    runtime.parent.mkdir(mode=0o700)
    port = free_port()
    gateway = "gateway", "--port", str(port)
    executor = "executor", "--device", "host", "--capacity", "1GiB", "--spares", "0", "--end-sessions-on-exit"
    with ExitStack() as stack:
        stack.enter_context(service(scratch, *executor))
        with service(scratch, *gateway):
            wait_until(lambda: ask(port, "/readyz").status == 200, "both serve")
            assert ask(port, "/api/kernels", method="POST", body={}).status == 201
            names = {"audit.jsonl", "colours.json", "owners.json", "users.json", "history.json", SHELF_DIRECTORY}
            wait_until(lambda: {path.name for path in state.iterdir()} == names, "all are kept")
            assert state.stat().st_mode & 0o777 == 0o700
            assert not {path.name for path in runtime.iterdir()} & names
    wait_until(lambda: not processes_of(scratch), "all have ended")
    shutil.rmtree(runtime)  # as a reboot does
    with ExitStack() as stack:
        stack.enter_context(service(scratch, *gateway))
        # 503: it knows that its user had a session, and waits for the executor
        wait_until(lambda: ask(port, "/api/kernels").status == 503, "the gateway knows the owners")
        stack.enter_context(service(scratch, *executor))
        wait_until(lambda: ask(port, "/api/kernels") == Answer(200, []), "the executor says that it is gone")
        assert ask(port, "/sharedkernel/api/status").status == 200
    actions = [json.loads(line)["action"] for line in (state / "audit.jsonl").read_text().splitlines()]
    assert actions[0] == "start session"
    wait_until(lambda: not processes_of(scratch), "all have ended")


def test_each_runtime_directory_and_device_has_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All are private. One that cannot be made is replaced, with a sentence, unless somebody has named it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base, fallback = tmp_path / "state" / "sharedkernel", tmp_path / "run"
    other = make_state_directory("", Path("/run/gpu"), fallback)
    first = make_state_directory("", tmp_path / "sharedkernel", fallback)
    second = make_state_directory("", tmp_path / "sharedkernel", fallback, "cuda:1")
    assert (other, first, second) == (base / "run-gpu", base, base / "cuda-1")
    assert {path.stat().st_mode & 0o777 for path in (other, first, second)} == {0o700}
    assert make_state_directory(str(tmp_path / "named"), Path("/run/gpu"), fallback) == tmp_path / "named"
    base.chmod(0o755)
    assert make_state_directory("", Path("/run/gpu"), fallback) == fallback
    assert f"run `chmod 700 {base}` or name another directory with --state-dir. Until then, " in caplog.text
    with pytest.raises(ConfigError, match="--state-dir"):
        make_state_directory(str(base), Path("/run/gpu"), fallback)


def test_shelves_are_where_a_reboot_leaves_them(tmp_path: Path) -> None:
    """Among the homes or with the state; each executor has its own, and none is in memory by default."""
    homes, state, run = Path("/srv/homes"), Path("/var/lib/state"), Path("/run/gpu/cuda-1")
    own = Path(SHELF_DIRECTORY, "run-gpu-cuda%2D1")
    assert shelf_directory("", homes, state, run) == homes / own
    assert shelf_directory("", None, state, run) == state / SHELF_DIRECTORY
    assert shelf_directory(str(tmp_path), homes, state, run) == tmp_path / own
    assert shelf_directory("", homes, state, Path("/run/gpu/cuda/1")) == homes / SHELF_DIRECTORY / "run-gpu-cuda-1"
    assert shelf_directory("", None, None, run).is_relative_to("/var/tmp")
