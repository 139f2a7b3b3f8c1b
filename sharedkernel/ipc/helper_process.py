"""The environment of the processes beside an executor, and the end of those that it reaches by a socket."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

from sharedkernel.ipc.seqpacket import PacketSocket
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
    with contextlib.suppress(OSError):
        try:
            _read_to_end(small)
        except TimeoutError:
            kill_peer(small)
            _read_to_end(small)


def _read_to_end(small: PacketSocket) -> None:
    while small.receive()[0] is not None:
        pass


def kill_peer(small: PacketSocket, signum: int = signal.SIGKILL) -> None:
    """Kill the process that listened at the other end, or send it another signal; never a later one with its id."""
    with contextlib.suppress(ProcessLookupError), closing_descriptor(os.pidfd_open(small.peer().pid)) as descriptor:
        if not small.is_at_end():  # its end of the connection is open, so its id was its own when that was opened
            signal.pidfd_send_signal(descriptor, signum)
