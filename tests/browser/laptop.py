"""JupyterLab on a machine of another name, as on a person's own: ``python -m tests.browser.laptop``; for root alone."""

from __future__ import annotations

import ctypes
import os
import runpy
import socket

_CLONE_NEWUTS = 0x04000000
NAME = "laptop"

if __name__ == "__main__":
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    socket.sethostname(NAME)
    runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
