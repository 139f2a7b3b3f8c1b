"""Start the warm parents beside an executor, or connect to those that another executor left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedkernel.errors import ConfigError, ExecutorUnavailable
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.system.atomic_file import closing_descriptor

#: variables of the executor's environment that sessions may see; all others stay with it
_PASSED_ON = frozenset({
    "CC", "CPATH", "CURL_CA_BUNDLE", "CXX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LIBRARY_PATH", "LOGNAME",
    "PATH", "PYTHONPATH", "REQUESTS_CA_BUNDLE", "SHAREDKERNEL_OFFLOAD_DIR", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
})  # fmt: skip
_PASSED_ON_PREFIXES = (
    "CUBLAS_", "CUDA_", "CUDNN_", "HF_", "JAX_", "KMP_", "LC_", "MKL_", "NCCL_", "NUMBA_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "PIP_", "PYTORCH_", "TORCH_", "TRANSFORMERS_", "TRITON_", "UV_", "XLA_",
)  # fmt: skip
#: in either case, as programs look for them in both
_PROXIES = frozenset({"all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy"})
#: a variable with one of these in its name stays with the executor, whatever else it is called
_SECRET = ("CREDENTIAL", "KEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
#: an address with a user's name, and most often a password
_HAS_CREDENTIALS = re.compile(r"://[^/\s]*@")
#: names of further variables that the admin lets sessions see, with commas between them
_NAMED_BY_ADMIN = "SHAREDKERNEL_SESSION_VARIABLES"
#: of these, what belongs to the executor's own Python
_OF_OWN_PYTHON = frozenset({"PYTHONPATH", "VIRTUAL_ENV"})

#: seconds to wait for one to listen
_START_TIMEOUT = 30.0
#: seconds to wait for one to answer, or to end with all that it has started
PATIENCE = 10.0


def scrubbed_environment(python: str = sys.executable) -> dict[str, str]:
    """Return what of this process's environment a warm parent, run by *python*, may see: nothing that is secret."""
    named = frozenset(map(str.strip, os.environ.get(_NAMED_BY_ADMIN, "").split(",")))
    passed = {name: value for name, value in os.environ.items() if name in named or _is_passed_on(name, value)}
    if python != sys.executable:
        passed = {name: value for name, value in passed.items() if name not in _OF_OWN_PYTHON}
        passed["PATH"] = os.pathsep.join([str(Path(python).parent), passed.get("PATH", os.defpath)])
    return passed


def _is_passed_on(name: str, value: str) -> bool:
    if any(word in name.upper() for word in _SECRET) or _HAS_CREDENTIALS.search(value):
        return False
    return name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES) or name.lower() in _PROXIES


async def reach(
    path: Path, module: str, arguments: Sequence[str], accepted: Any, *, log_path: Path, python: str = sys.executable
) -> PacketSocket:
    """Connect to the warm parent listening at *path*, and start it if nobody does.

    Parameters
    ----------
    path
        Its socket.
    module, arguments
        What *python* runs, with the socket's path before the arguments.
    accepted
        As in :class:`~sharedkernel.ipc.seqpacket.PacketSocket`.
    log_path
        Where its output goes.

    Raises
    ------
    ExecutorUnavailable
        When it does not start.
    ConfigError
        When its log cannot be written.
    """
    with contextlib.suppress(OSError):
        return connect(str(path), accepted)
    try:
        log_file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot write the log {log_path}: {error.strerror}; free some space or name another --runtime-dir."
        ) from None
    with closing_descriptor(log_file) as output:
        child = subprocess.Popen(  # noqa: ASYNC220 (starting takes a millisecond; it outlives this loop)
            [python, "-m", module, str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=scrubbed_environment(python),
            cwd="/",
        )
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        with contextlib.suppress(OSError):
            return connect(str(path), accepted)
        if child.poll() is not None or time.monotonic() > deadline:
            raise ExecutorUnavailable(f"{module} did not start; see {log_path}.")
        await asyncio.sleep(0.01)


def wait_for_end(small: PacketSocket, patience: float = PATIENCE) -> None:
    """Wait until the process at the other end is gone: its end closes the connection.

    Parameters
    ----------
    small
        A connection to it.
    patience
        Seconds until one that hangs is killed.
    """
    small.set_timeout(patience)
    for is_last in (False, True):
        try:
            while small.receive()[0] is not None:
                pass
        except TimeoutError:
            if not is_last:
                kill_peer(small)
                continue
        except OSError:
            pass
        return


def kill_peer(small: PacketSocket) -> None:
    """Kill the process that listened at the other end, if it is still there."""
    signal_peer(small, signal.SIGKILL)


def signal_peer(small: PacketSocket, signum: int) -> None:
    """Send a signal to the process that listened at the other end; never to a later one with its id."""
    with contextlib.suppress(ProcessLookupError), closing_descriptor(os.pidfd_open(small.peer().pid)) as descriptor:
        if not small.is_at_end():  # its end of the connection is open, so its id was its own when that was opened
            signal.pidfd_send_signal(descriptor, signum)
