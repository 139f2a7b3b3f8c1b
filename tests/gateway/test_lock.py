"""One gateway serves a runtime directory, and the next one takes its place, however it ended."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.executor.isolation.accounts import make_directory_of
from sharedkernel.gateway.lock import GatewayLock
from sharedkernel.paths import GATEWAY_DIRECTORY
from sharedkernel.system.lock_file import GATEWAY_LOCK, lend_gateway_lock
from tests.executor.isolation import FIRST_UID, GATEWAY, ApartExecutor, needs_root, readable_by_all
from tests.gateway.conftest import wait_for
from tests.small_disk import fill

#: takes the place that a gateway takes, says what came of it, and stays until its input ends
_TAKE_PLACE = """if True:
    import logging, os, sys
    from pathlib import Path
    from sharedkernel.errors import ConfigError
    from sharedkernel.gateway.lock import GatewayLock
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    try:
        lock = GatewayLock(Path(sys.argv[1]), patience=0.0)
    except ConfigError as error:
        sys.exit(str(error))
    print("here", flush=True)
    if sys.stdin.readline():
        lock.announce_end()
        print("ending", flush=True)
        sys.stdin.readline()
        lock.release()
"""


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sharedkernel", "gateway", "--port", "0", "--runtime-dir", str(directory), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def serves(gateway: subprocess.Popen[str]) -> bool:
    """Wait for the line that says so, or the end of it."""
    assert gateway.stdout is not None
    return gateway.stdout.readline().startswith("Serving on ")


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End them and what they say, whatever happens."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


@pytest.mark.heavy
def test_a_second_gateway_is_refused_in_one_sentence_and_the_first_serves_on(tmp_path: Path) -> None:
    """On another port too; it says whom to stop."""
    with ended(first := start(tmp_path / "run")):
        assert serves(first)
        with ended(second := start(tmp_path / "run")):
            _, error = second.communicate(timeout=60)
        assert second.returncode == 1
        content = (tmp_path / "run" / GATEWAY_LOCK).read_text()
        process, port = content.split()
        assert int(process) == first.pid
        assert error.splitlines()[-1] == (
            f"sharedkernel: another gateway (process {process}, port {port}) serves {tmp_path / 'run'}; stop it "
            "(`--drain` lets its cells end first), or name another --runtime-dir."
        )
        assert first.poll() is None
        assert (tmp_path / "run" / GATEWAY_LOCK).read_text() == content
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_gateway_need_not_wait_to_be_started_until_the_one_before_is_gone(
    tmp_path: Path, signum: signal.Signals
) -> None:
    """Nothing of a killed one keeps it out."""
    with ended(first := start(tmp_path / "run")):
        assert serves(first)
        first.send_signal(signum)
        with ended(second := start(tmp_path / "run")):
            assert serves(second)
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    assert not (tmp_path / "run" / GATEWAY_LOCK).exists()


def test_a_full_disk_keeps_no_gateway_from_serving(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It writes its process id over that of one that was killed; without even that file it serves all the same."""
    path = small_disk / GATEWAY_LOCK
    path.write_text("4194303 65535\n")
    filling = fill(small_disk)
    lock = GatewayLock(small_disk, patience=0.0)
    lock.publish_port(80)
    assert path.read_text() == f"{os.getpid()} 80\n"
    lock.release()
    assert not caplog.records
    filling.unlink()
    fill(small_disk)
    lock = GatewayLock(small_disk, patience=0.0)
    assert "could not be written (No space left on device)" in caplog.text
    assert not path.read_bytes()
    lock.release()


def take_place(directory: Path, uid: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        readable_by_all([sys.executable, "-c", _TAKE_PLACE, str(directory), str(uid)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def heard(process: subprocess.Popen[str]) -> str:
    """Return the next line that *process* writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_one_that_is_ending_is_waited_for_without_any_patience(tmp_path: Path) -> None:
    """However long it takes; the third is refused by the second, which took the place of the first."""
    own = os.getuid()
    with ended(first := take_place(tmp_path, own)):
        assert heard(first) == "here"
        go_on(first)
        assert heard(first) == "ending"
        with ended(second := take_place(tmp_path, own)):
            assert heard(second) == f"waiting for {tmp_path / GATEWAY_LOCK}"
            go_on(first)
            assert heard(second) == "here"
            with ended(third := take_place(tmp_path, own)):
                _, error = third.communicate()
            assert third.returncode == 1
            assert f"another gateway (process {second.pid})" in error


@needs_root
def test_a_gateway_of_another_account_locks_what_root_s_executor_made_for_it() -> None:
    """It may make nothing in root's directory; where there is no such file yet, it serves all the same."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        with ended(alone := take_place(directory, FIRST_UID)):
            assert heard(alone).startswith(f"{directory / GATEWAY_LOCK} cannot be locked")
            assert heard(alone) == "here"
        for _ in range(2):  # by each executor
            lend_gateway_lock(directory, FIRST_UID, FIRST_UID)
        with ended(first := take_place(directory, FIRST_UID)):
            assert heard(first) == "here"
            with ended(second := take_place(directory, FIRST_UID)):
                _, error = second.communicate()
            assert f"another gateway (process {first.pid})" in error
            go_on(first)
            go_on(first)
            assert first.wait(60) == 0
        with ended(third := take_place(directory, FIRST_UID)):
            assert heard(third) == "here"


@pytest.mark.heavy
@needs_root
def test_root_s_executor_makes_that_file_for_the_account_of_its_gateway() -> None:
    """As soon as it starts."""
    executor = ApartExecutor()
    try:
        path = executor.runtime_directory / GATEWAY_LOCK
        uid = pwd.getpwnam(GATEWAY).pw_uid
        wait_for(lambda: path.exists() and path.stat().st_uid == uid)
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        executor.close()


@pytest.mark.heavy
@needs_root
def test_what_a_gateway_cannot_write_is_said_once_at_its_start() -> None:
    """In a sentence each; in a directory of its own it writes everything, and says nothing."""
    account = pwd.getpwnam(GATEWAY)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/nonexistent",
                   "JUPYTERHUB_API_TOKEN": "0" * 32, "JUPYTERHUB_SERVICE_NAME": "gpu"}  # fmt: skip

    def complaints(directory: Path, *more: str) -> list[str]:
        """Return what a gateway for a hub's users says until it serves."""
        options = ["--identity", "jupyterhub", "--port", "0", "--runtime-dir", str(directory), *more]
        command = readable_by_all([*become, sys.executable, "-m", "sharedkernel", "gateway", *options])
        gateway = subprocess.Popen(
            command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with ended(gateway):
            assert serves(gateway)
            gateway.send_signal(signal.SIGTERM)
            _, said = gateway.communicate(timeout=60)
        lines = [line.partition("] ")[2] for line in said.splitlines() if line.startswith(("[W", "[E", "[C", "Trace"))]
        assert lines.pop() == "received signal 15, stopping"
        return lines

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        assert complaints(directory) == [
            f"{directory / GATEWAY_LOCK} cannot be locked: this gateway cannot be drained, and another one could start",
            "/nonexistent/.local/state/sharedkernel cannot be made (Permission denied); name another with --state-dir. "
            f"Until then, what should outlive a reboot is in {directory}.",
            f"{directory}/groups.json cannot be written (Permission denied); that is tried again at each change. After "
            "a restart, quotas by group hold for nobody before their next request.",
            f"the audit log {directory}/audit.jsonl cannot be written (Permission denied); name another file "
            "with --audit-file.",
        ]
        own = make_directory_of(directory, GATEWAY_DIRECTORY, account.pw_uid, account.pw_gid)
        lend_gateway_lock(directory, account.pw_uid, account.pw_gid)
        assert complaints(directory, "--state-dir", str(own)) == []
        assert {path.name: path.stat().st_uid for path in own.iterdir()} == dict.fromkeys(
            ("groups.json", "audit.jsonl"), account.pw_uid
        )
