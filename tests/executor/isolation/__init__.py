"""An executor that runs sessions under users' own accounts, for tests that run as root."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.executor.isolation.accounts import closed_ancestor
from sharedkernel.paths import OFFLOAD_VARIABLE
from sharedkernel.system.processes import may_look_into_others
from tests.executor import harness
from tests.executor.harness import ExecutorProcess, Notebook

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or not may_look_into_others(),
    reason="only root with CAP_SYS_PTRACE can run sessions under users' own accounts",
)

#: account that every machine has, here the gateway's
GATEWAY = "nobody"
#: first user id that the tests give out; others run beside these, and whatever has a user's id ends with their session
FIRST_UID = 231000 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
#: users who have no account of that name: the sessions of those who do are in their real homes
ADA, GRACE, HEDY = USERS = ("sk-test-ada", "sk-test-grace", "sk-test-hedy")


class Executor(harness.Executor):
    """An executor whose sessions are those of such users."""

    async def notebook(self, user: str = ADA, session: str | None = None, **options: Any) -> Notebook:
        return await super().notebook(user, session, **options)


class ApartExecutor(ExecutorProcess):
    """An executor process whose sessions run under accounts of their own, with homes below its directory."""

    #: as long as it is not, it is an executor like any other
    is_apart = True

    def __init__(self, *options: str, **places: Any) -> None:
        assert not {*USERS, ADA.title()} & {entry.pw_name for entry in pwd.getpwall()}, "accounts are called so"
        super().__init__(*options, **places)

    @property
    def homes(self) -> Path:
        return self.directory / "homes"

    @property
    def offload_directory(self) -> Path:
        return self.directory / "away"

    def command(self) -> list[str]:
        if not self.is_apart:
            return readable_by_all(super().command())
        self.directory.chmod(0o711)  # for users to pass
        uids = f"{FIRST_UID}-{FIRST_UID + 99}"
        options = ["--isolate", "users", "--uid-range", uids, "--homes", str(self.homes), "--gateway-user", GATEWAY]
        environment = ["env", f"{OFFLOAD_VARIABLE}={self.offload_directory}"]
        return readable_by_all([*environment, *super().command(), *options])


def readable_by_all(command: Sequence[str]) -> list[str]:
    """Return *command* so that other accounts can use this Python wherever it lies.

    Where a directory on the way to it is closed to others, such as root's home, the command sees an open one in its
    place that has nothing but this Python, in a mount namespace of its own.
    """
    prefix = Path(sys.base_prefix)
    closed = closed_ancestor(prefix)
    if closed is None:
        return list(command)
    script = f"""set -e
        stage=$(mktemp -d)
        mount --bind {shlex.quote(str(prefix))} $stage
        mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}
        mkdir -p {shlex.quote(str(prefix))}
        mount --bind $stage {shlex.quote(str(prefix))}
        umount $stage; rmdir $stage
        exec "$@"
    """
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def as_account(name: str, *arguments: str) -> list[str]:
    """Return the command that runs this Python with *arguments* as the account *name*."""
    account = pwd.getpwnam(name)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return readable_by_all([*become, sys.executable, *arguments])
