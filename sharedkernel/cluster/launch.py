"""Start a host's services outside Ray's processes, so that they outlive Ray.

Ray ends the children of a worker that ends, and the processes of a raylet that ends. A process whose parent has ended
in a session of its own is neither. A Ray worker also hands down what services must not have: Ray's token, the GPUs that
Ray chose, one thread for all computations, a blocked SIGINT, a low priority, and the first place when the kernel is
out of memory.

``python -m sharedkernel.cluster.launch COMMAND…`` is the process in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sharedkernel.system.atomic_file import closing_descriptor

#: of `prctl`
_PR_GET_CHILD_SUBREAPER = 37
#: seconds that the process in between may take
_TIMEOUT = 60.0
#: bytes of a log after which a new one is begun; the one before is kept
_MAX_LOG_BYTES = 16 * 1024**2
#: variables of a Ray worker that services must not have, besides all whose names begin with RAY_
_OF_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
_OOM_SCORE = Path("/proc/self/oom_score_adj")


def host_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a host's services, from a Ray worker's."""
    return {name: value for name, value in environ.items() if name not in _OF_RAY and not name.startswith("RAY_")}


def ends_with_ray() -> bool:
    """Whether Ray would end even what is started here: this process reaps all orphans (Ray's subreaper mode)."""
    value = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return bool(value.value)


def start_detached(command: Sequence[str], log: Path) -> None:
    """Start *command* as a process that is nobody's child, with its output in the file *log*.

    Raises
    ------
    OSError
        When the log cannot be written.
    subprocess.SubprocessError
        When it cannot be started.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".1"))
    with closing_descriptor(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)) as descriptor:
        subprocess.run(
            [sys.executable, "-m", __name__, *command],
            env=host_environment(os.environ),
            cwd="/",
            stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, timeout=_TIMEOUT, check=True,
        )  # fmt: skip


def main(command: Sequence[str]) -> None:
    """Start *command* in a session of its own, and return at once."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(OSError):  # some containers do not let it be changed
        _OOM_SCORE.write_text("0")
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            sys.stderr.write(
                "sharedkernel: notebooks here run with Ray's low priority, which only root can raise; start Ray with "
                "RAY_worker_niceness=0 in its environment.\n"
            )
    subprocess.Popen(command, start_new_session=True)


if __name__ == "__main__":
    main(sys.argv[1:])
