"""The process of the self-test: ``python -m sharedkernel.selftest STEP …`` writes a line of JSON for each step.

It imports torch once, after which it writes the line *loaded*, uses no device itself, and forks a process for each
step, as sessions are forked. Each has a process group of its own, which is killed when the step has ended or its time
is up.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

import msgspec

from sharedkernel.selftest.steps import STEP_SECONDS, STEPS, Outcome, StepResult
from sharedkernel.system.processes import adopt_orphans, end_with_parent, fork_child

#: seconds that a process has to end once it was killed
_KILL_SECONDS = 3.0
#: what a step says that passed
_OK = "ok"
_MODULES = {"plain": "plain_steps", "private": "memory_steps", "shared": "memory_steps"}


def find(name: str) -> Callable[[], None]:
    """Return the function of a step; it raises if the step fails."""
    mode = next(step.mode for step in STEPS if step.name == name)
    return getattr(import_module(f"sharedkernel.selftest.{_MODULES[mode]}"), name.replace("-", "_"))


def try_step(name: str, seconds: float = STEP_SECONDS) -> str:
    """Run one step in a process of its own.

    Parameters
    ----------
    name
        Of the step.
    seconds
        That it may take.

    Returns
    -------
    Why it failed, without a full stop; empty if it passed.
    """
    reader, writer = os.pipe()

    def be_step() -> None:
        os.close(reader)
        try:
            os.setpgid(0, 0)
            os.dup2(2, 1)  # results go to the pipe; whatever is printed, to the log
            find(name)()
            os.write(writer, _OK.encode())
        except BaseException as error:
            os.write(writer, _first_line(error).encode())
            raise

    pid = fork_child(be_step)
    os.close(writer)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # the child does it, too; either may be first
    handle = os.pidfd_open(pid)
    try:
        in_time = _ends_within(handle, seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if not in_time and not _ends_within(handle, _KILL_SECONDS):
            os.close(reader)
            return f"it took longer than {seconds:.0f} s, and its process cannot be killed"
    finally:
        os.close(handle)
    _, status = os.waitpid(pid, 0)
    _reap()
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode(errors="replace")
    if not in_time:
        return f"it took longer than {seconds:.0f} s"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    if code == 0 and said == _OK:
        return ""
    return said.removeprefix(_OK) or f"its process ended with exit status {code}"


def _reap() -> None:
    """Wait until the processes that a step left have ended, which were killed: their device memory is free then."""
    deadline = time.monotonic() + _KILL_SECONDS
    with contextlib.suppress(ChildProcessError):  # there are no more
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)


def _ends_within(handle: int, seconds: float) -> bool:
    return bool(select.select([handle], [], [], seconds)[0])


def _first_line(error: BaseException) -> str:
    first, *_ = (*str(error).strip().splitlines(), type(error).__name__)
    return first[:300].rstrip(".")


def main(names: Sequence[str]) -> None:
    """Run steps one after another."""
    end_with_parent(signal.SIGKILL)
    adopt_orphans()
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    import torch

    torch.set_num_threads(1)
    for name in names:
        find(name)  # imported once, for all
    print("loaded", flush=True)  # noqa: T201
    for name in names:
        began = time.monotonic()
        why = try_step(name)
        outcome = Outcome.FAILED if why else Outcome.PASSED
        result = StepResult(step=name, outcome=outcome, seconds=time.monotonic() - began, why=why)
        print(msgspec.json.encode(result).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
