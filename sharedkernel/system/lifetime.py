"""``python -m sharedkernel.system.lifetime PID MODULE ARGUMENT…``: ``python -m MODULE ARGUMENT…`` until PID ends.

Used for what one command starts for itself (:mod:`sharedkernel.services`): however the starter ends, even by
SIGKILL, the operating system sends SIGTERM here. Linux only. The signal is tied to the *thread* that started this
process, so the starter must do that from a thread that lives as long as it wants this process.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence

from sharedkernel.distribution import skip_address_grammar
from sharedkernel.system.processes import end_with_parent


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a process that ends when the present one does.

    Parameters
    ----------
    module, arguments
        What it runs.
    """
    return [sys.executable, "-m", "sharedkernel.system.lifetime", str(os.getpid()), module, *arguments]


def end_with(starter: int) -> None:
    """Have SIGTERM sent to this process when its parent, the process *starter*, ends."""
    end_with_parent(signal.SIGTERM)
    # It may have ended before the call above: then nothing would ever tell.
    if os.getppid() != starter:
        sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    # a JupyterLab among them; somebody waits for it
    skip_address_grammar()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
