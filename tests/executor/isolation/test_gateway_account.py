"""A gateway beside root's executor: under an account of its own, and whose its files are."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.executor.isolation.accounts import make_directory_of
from sharedkernel.local_stack import free_port
from sharedkernel.paths import GATEWAY_DIRECTORY, SESSIONS_DIRECTORY
from sharedkernel.system.lock_file import GATEWAY_LOCK
from tests.executor.harness import PATIENCE
from tests.executor.isolation import (
    ADA,
    FIRST_UID,
    GATEWAY,
    ApartExecutor,
    as_account,
    needs_root,
    readable_by_all,
)

pytestmark = needs_root


_BE_A_GATEWAY = """if True:
    import asyncio, sys
    from types import SimpleNamespace
    from pathlib import Path
    from tests.executor.harness import Executor
    async def main():
        process = SimpleNamespace(poll=lambda: None)
        process = SimpleNamespace(runtime_directory=Path(sys.argv[1]), process=process, log=lambda: "")
        executor = Executor(process)
        await executor.client.connect()
        async with executor:
            notebook = await executor.notebook(sys.argv[2])
            print((await notebook.run("import os; os.getuid()")).text)
    asyncio.run(main())
"""
_ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[3])}


def _be_a_gateway(apart: ApartExecutor, account: str) -> subprocess.CompletedProcess[str]:
    """Run a cell of ADA's as *account*; return what it printed."""
    command = as_account(account, "-c", _BE_A_GATEWAY, str(apart.runtime_directory), ADA)
    environment = {**_ENVIRONMENT, "HOME": "/", "IPYTHONDIR": "/nonexistent"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize(("account", "is_heard"), [(GATEWAY, True), ("daemon", False)])
def test_the_gateway_needs_no_root(apart: ApartExecutor, account: str, is_heard: bool) -> None:
    """The account that was named for it starts sessions and speaks to them; no other account does."""
    done = _be_a_gateway(apart, account)
    if is_heard:
        assert int(done.stdout) in range(FIRST_UID, FIRST_UID + 100), done.stderr
    else:
        assert done.stdout == ""
        assert "closed the connection" in done.stderr, done.stderr


class InTheGatewaysGroup(ApartExecutor):
    """An executor that is root in the gateway's group, as the drop-in of its unit starts it."""

    def command(self) -> list[str]:
        return ["setpriv", f"--regid={pwd.getpwnam(GATEWAY).pw_gid}", "--keep-groups", *super().command()]


@pytest.mark.heavy
def test_an_executor_in_the_gateways_group_sets_no_bit_that_its_unit_forbids() -> None:
    """With `RestrictSUIDSGID=` the system refuses the bit; the gateway reaches its sessions all the same."""
    executor = InTheGatewaysGroup()
    try:
        executor.wait()
        assert not (executor.runtime_directory / SESSIONS_DIRECTORY).stat().st_mode & stat.S_ISGID
        done = _be_a_gateway(executor, GATEWAY)
        assert int(done.stdout) in range(FIRST_UID, FIRST_UID + 100), done.stderr
    finally:
        executor.close()


@pytest.fixture
def gateways_own() -> Iterator[Path]:
    """Yield a directory of the gateway's account, which reaches it."""
    with tempfile.TemporaryDirectory(prefix="sk-gateway-") as directory:
        shutil.chown(directory, GATEWAY)
        yield Path(directory)


def test_a_whole_gateway_without_root_serves_and_is_drained(apart: ApartExecutor, gateways_own: Path) -> None:
    """In a runtime directory that is root's it lacks nothing: it complains of nothing, and goes when it is asked to."""
    port = free_port()
    options = ["--port", str(port), "--runtime-dir", str(apart.runtime_directory)]
    command = as_account(GATEWAY, "-m", "sharedkernel", "gateway", *options)
    environment = {**_ENVIRONMENT, "HOME": str(gateways_own), "JUPYTER_TOKEN": "a-token-that-nobody-can-guess"}

    def ask(method: str, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=b"{}")
        request.add_header("Authorization", "token a-token-that-nobody-can-guess")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status), answer.read()
        except OSError:
            return 0, b""

    with (gateways_own / "log").open("w+") as log:
        gateway = subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=log)
        try:
            while ask("GET", "/readyz")[0] != 200 and gateway.poll() is None:
                time.sleep(0.1)
            status, kernel = ask("POST", "/api/kernels")
            assert status == 201
            assert ask("DELETE", f"/api/kernels/{json.loads(kernel)['id']}?linger=0")[0] == 204
            drain = subprocess.run([*command, "--drain"], cwd="/", env=environment, check=False, timeout=PATIENCE)
            assert drain.returncode == 0
            assert gateway.wait(PATIENCE) == 0
        finally:
            gateway.kill()
            gateway.wait()
            log.seek(0)
            said = log.read()
    assert "drained" in said
    assert [line for line in said.splitlines() if line.startswith(("[W", "[E", "[C", "Traceback"))] == []
    (audit,) = gateways_own.glob(".local/state/sharedkernel/*/audit.jsonl")
    assert '"start session"' in audit.read_text()
    assert {path.stat().st_uid for path in (audit.parent, audit)} == {pwd.getpwnam(GATEWAY).pw_uid}
    assert [path.stat().st_mode & 0o777 for path in (audit.parent, audit)] == [0o700, 0o600]


def test_another_account_does_not_get_the_files_of_a_gateway() -> None:
    """The executor does not start, and says what is whose."""
    account = pwd.getpwnam(GATEWAY)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        make_directory_of(directory, GATEWAY_DIRECTORY, account.pw_uid, account.pw_gid)
        options = ["--isolate", "users", "--homes", str(directory / "homes"), "--gateway-user", "daemon"]
        command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", name, *options]
        done = subprocess.run(readable_by_all(command), capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 1
        expected = f"{directory / GATEWAY_DIRECTORY} belongs to user id {account.pw_uid}, not "
        assert done.stderr.splitlines()[-1].startswith(f"sharedkernel: {expected}")
        assert not (directory / GATEWAY_LOCK).exists()
