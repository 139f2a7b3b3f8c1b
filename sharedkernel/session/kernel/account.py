"""Change of a process to its user's account, with the account's limits and variables.

Importing this loads nothing that a kernel needs, for the user's processes that are none.
"""

from __future__ import annotations

import os
import resource
import tempfile

from sharedkernel.paths import OFFLOAD_VARIABLE
from sharedkernel.protocol import Account
from sharedkernel.system import processes

#: of the account that forked this process; they say nothing about the user's
_NOT_THE_USERS = ("IPYTHONDIR", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")


def become(account: Account, *, log: str | None = None) -> None:
    """Take on *account* in this process, before any code of its user runs.

    Parameters
    ----------
    account
        The user's.
    log
        Path of a file of the account's that takes this process's output; None: where that goes becomes the account's.

    Raises
    ------
    OSError
        When that is not possible; the process must end then.
    """
    if account.uid is not None:
        _change_user(account, log)
    for name in _NOT_THE_USERS:
        os.environ.pop(name, None)
    os.environ["HOME"] = account.home
    os.environ["USER"] = os.environ["LOGNAME"] = account.name
    if account.shell is not None:
        os.environ["SHELL"] = account.shell
    tempfile.tempdir = None
    if account.runtime_directory is not None:
        os.environ["XDG_RUNTIME_DIR"] = account.runtime_directory
    if account.offload_directory is not None:
        os.environ[OFFLOAD_VARIABLE] = account.offload_directory


def _change_user(account: Account, log: str | None) -> None:
    assert account.uid is not None
    assert account.gid is not None
    for name, limit in account.rlimits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (limit, limit))
    for output in (1, 2) if log is None else ():
        os.fchown(output, account.uid, account.gid)  # its log, which programs reopen as /dev/stderr
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise OSError("the account was not changed")
    if log is not None:  # before other processes of the account may take what this one has open
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    processes.be_readable_by_own_user()
    os.umask(0o077)
