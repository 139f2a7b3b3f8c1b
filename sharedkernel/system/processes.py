"""The settings of a process for itself and its children (Linux).

All of it holds for the calling thread, and for threads and processes that it starts afterwards: call it before there
are others.

``python -m sharedkernel.system.processes PID MODULE ARGUMENT…`` is ``python -m MODULE ARGUMENT…`` until PID ends, for
what one command starts for itself (:mod:`sharedkernel.services`): however the starter ends, even by SIGKILL, the
operating system sends SIGTERM there. The signal is tied to the *thread* that started the process, so the starter must
do that from a thread that lives as long as it wants the process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import NoReturn

import setproctitle

from sharedkernel.distribution import skip_address_grammar

#: what is added to a session's score by which the system chooses whom to end when memory runs out (out of 1000)
_OOM_SCORE = 300
_CAP_SYS_PTRACE, _CAP_SYS_RESOURCE = 19, 24
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
#: characters of a user's and of a notebook's name that a title shows
_USER_LENGTH, _NOTEBOOK_LENGTH = 40, 60
#: tells setproctitle to leave alone what `/proc/PID/environ` shows
_KEEP_ENVIRONMENT = "SPT_NOENV"
#: number of the system call `keyctl`, which no C library wraps, by machine
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def gain_no_privileges() -> None:
    """Let no program that is started from now on have more rights than this process: no setuid, no capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that they can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(signum: int) -> None:
    """Send this process *signum* as soon as the thread that started it ends."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it ended meanwhile
        os.kill(os.getpid(), signum)


def be_readable_by_own_user() -> None:
    """Let this user's other processes look into this one, as is usual; a change of user takes that away."""
    _prctl(_PR_SET_DUMPABLE, 1)


def set_name(name: str) -> None:
    """Set the short name of this process, which `top` and `ps -e` show; the system keeps 15 bytes of it."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def session_title(user: str, notebook: str | None) -> str:
    """Return the title of a session: bounded, on one line, and without the notebook's folders.

    Parameters
    ----------
    user
        Whose session it is.
    notebook
        The notebook's path; None: not known, or not to be shown.
    """
    shown = _printable(user, _USER_LENGTH)
    name = _printable(notebook.rpartition("/")[2], _NOTEBOOK_LENGTH) if notebook else ""
    return f"sharedkernel: {shown} · {name}" if name else f"sharedkernel: {shown}"


def _printable(text: str, length: int) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:length])


def prepare_titles() -> None:
    """Make titles possible in this process, which has that of a spare session from then on.

    The place of the command line is found by the first of the variables that the process was started with: call it
    before they change.
    """
    os.environ[_KEEP_ENVIRONMENT] = "1"
    try:
        show_title("sharedkernel: spare", "sk-spare")
    finally:
        del os.environ[_KEEP_ENVIRONMENT]


def show_title(title: str, name: str) -> None:
    """Show *title* as the command line of this process, and *name* as its short name.

    Every account of the machine can read both. The title is cut to the length of the command line with which the
    process, or the one it was forked from, was started.
    """
    setproctitle.setproctitle(title)
    set_name(name)


@functools.cache
def may_raise_limits() -> bool:
    """Return whether this process may raise hard limits again, its own and others' (`CAP_SYS_RESOURCE`)."""
    return _has_capability(_CAP_SYS_RESOURCE)


def may_look_into_others() -> bool:
    """Return whether this process may look into processes of other accounts (`CAP_SYS_PTRACE`)."""
    return _has_capability(_CAP_SYS_PTRACE)


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> number & 1)


def be_ended_first() -> None:
    """Have the system end this process, or what it starts, before its parent when memory runs out.

    Where this process may still have a capability for it, an account that it changes to cannot take that back.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + _OOM_SCORE)
        file.seek(0)
        file.write(str(score))


def leave_keyring() -> None:
    """Join a new session keyring where the kernel has keyrings, to drop access to the parent process's keys."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_long(_KEYCTL_JOIN_SESSION_KEYRING), None, None, None, None)


def close_descriptors_but(kept: Container[int]) -> None:
    """Close every descriptor of this process that is not *kept*: a fork inherits them all, whatever their flags."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(int(name))


def reset_signals() -> None:
    """Ignore the signals that every Python process ignores, and no others, and block none.

    The process that started this one may have had it otherwise, and handlers are inherited by a fork.
    """
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_ignored = signum in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(signum, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def fork_child(work: Callable[[], object]) -> int:
    """Do *work* in a child of this process, which ends with either; return its id.

    If it fails, its exit status is 1, and standard error has the traceback.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(signal.SIGKILL)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def end_process(code: int) -> NoReturn:
    """End this process with its exit handlers run, but without waiting for its threads."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(code)


def bound_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a process that ends when the present one does.

    Parameters
    ----------
    module, arguments
        What it runs.
    """
    return [sys.executable, "-m", "sharedkernel.system.processes", str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # it ended before the call above: then nothing would ever tell
        sys.exit(1)
    # a JupyterLab among them; somebody waits for it
    skip_address_grammar()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
